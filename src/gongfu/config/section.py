"""What every section of a recipe is, and the numbers that many of them use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    idle: ClassVar[Mapping[str, Callable[[Any], tuple[str, ...]]]] = {}
    """Setting -> from its value, those that do nothing beside it. Where a later layer gives it, theirs of earlier ones go."""

    def in_vain(self, setting: str) -> list[str]:
        """What differs from its default and does nothing because of `setting`."""
        fields = type(self).model_fields
        names = self.idle[setting](getattr(self, setting))
        return [name for name in names if getattr(self, name) != fields[name].default]


def drop_hint(setting: str) -> str:
    """What to do about settings in vain that stand in a file which is not to be changed."""
    return f"leave them out, or give {setting} in a later file or on the command line, which drops them"
