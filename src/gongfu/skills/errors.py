"""What can go wrong with skills and their bank."""

from __future__ import annotations

from gongfu.core.errors import GongfuError


class SkillError(GongfuError, ValueError):
    """A skill, or a part of one, is not usable."""


class BankError(GongfuError):
    """A bank is missing, damaged, of another version or cannot be reached."""


class RefError(BankError, ValueError):
    """No commit goes by this name, or several do."""


class EditError(BankError, ValueError):
    """An edit does not fit the bank that it is made on. Nothing was written."""


class EvidenceError(BankError, ValueError):
    """A use or a proposal cannot be recorded. Nothing was written."""


class StaleHeadError(BankError):
    """The branch has moved on since `parent` was its head: look at `head`, decide again, commit again. Nothing was written."""

    def __init__(self, branch: str, parent: str, head: str) -> None:
        super().__init__(
            f"branch {branch} is at {head[:12]}, not at {parent[:12]}: another commit came first; "
            "read the new head, decide again and commit on it"
        )
        self.branch = branch
        self.parent = parent
        self.head = head

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.branch, self.parent, self.head)


class FolderError(GongfuError, ValueError):
    """A folder or an archive of skills is unsafe, damaged or not in the format."""
