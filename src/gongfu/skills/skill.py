"""A skill: frozen, versioned and named by what it says."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gongfu.skills.canonical import canonical_json, sha256
from gongfu.skills.errors import SkillError

NAME_LIMIT = 64
KIND_LIMIT = 200
ID_LENGTH = 16
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")
_UNREADABLE = {"Cc", "Cs"}  # control characters and lone surrogates
_STRICT = ConfigDict(extra="forbid", strict=True)


def one_line(text: str, what: str) -> str:
    """`text` with every run of whitespace made one blank. Raises SkillError when nothing is left or it cannot be read."""
    line = " ".join(text.split())
    if not line:
        raise SkillError(f"{what} is empty")
    bad = next((c for c in line if unicodedata.category(c) in _UNREADABLE), None)
    if bad is not None:
        raise SkillError(f"{what} holds the unreadable character U+{ord(bad):04X}: {line[:60]!r}")
    return line


def readable(text: str, what: str) -> str:
    """`text` as it is, of any number of lines. Raises SkillError when a database or a file could not hold it."""
    bad = next((c for c in text if c == "\0" or unicodedata.category(c) == "Cs"), None)
    if bad is not None:
        raise SkillError(f"{what} holds the unreadable character U+{ord(bad):04X}: {text[:60]!r}")
    return text


def slug(text: str, words: int = 6) -> str:
    """A name made of the first words of a text.

    >>> slug("Heat food in the microwave, then carry it.")
    'heat-food-in-the-microwave-then'
    """
    found = re.findall(r"[a-z0-9]+", text.lower())[:words]
    return "-".join(found)[:NAME_LIMIT].strip("-") or "skill"


def _set(record: Any, name: str, value: Any) -> None:
    object.__setattr__(record, name, value)  # records are frozen once they are made


def _set_lines(record: Any, *names: str) -> None:
    for name in names:
        lines = getattr(record, name)
        if isinstance(lines, str):
            raise SkillError(f"{name} is a list of items, got one text: {lines[:60]!r}")
        _set(record, name, tuple(one_line(line, f"{name}, item {i}") for i, line in enumerate(lines, 1)))


@dataclass(frozen=True)
class SkillProtocol:
    """How a skill is carried out: when it applies, the steps, when it is done, when to give it up."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    preconditions: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    success: tuple[str, ...] = ()
    abort: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _set_lines(self, "preconditions", "plan", "success", "abort")
        if not (self.preconditions or self.plan or self.success or self.abort):
            raise SkillError("a protocol without any item says nothing; leave it out (None)")


@dataclass(frozen=True)
class Predicate:
    """A fact, and the number of episodes in which it was observed."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    text: str
    support: int = 0

    def __post_init__(self) -> None:
        _set(self, "text", one_line(self.text, "a predicate"))
        if self.support < 0:
            raise SkillError(f"predicate {self.text!r} has the negative support {self.support}")


@dataclass(frozen=True)
class Contract:
    """What carrying the skill out changes: facts that become true, facts that cease, events on the way."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    adds: tuple[Predicate, ...] = ()
    deletes: tuple[Predicate, ...] = ()
    events: tuple[Predicate, ...] = ()

    def __post_init__(self) -> None:
        for name in ("adds", "deletes", "events"):
            _set(self, name, tuple(getattr(self, name)))
        if not (self.adds or self.deletes or self.events):
            raise SkillError("a contract without any predicate promises nothing; leave it out (None)")


@dataclass(frozen=True)
class Validator:
    """Source text of a program that judges outcomes, and the name of the sandbox that may run it."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    source: str
    sandbox: str

    def __post_init__(self) -> None:
        readable(self.source, "a validator's source")
        if not self.source.strip() or not self.sandbox:
            raise SkillError("a validator needs a source and the name of its sandbox")


@dataclass(frozen=True)
class Link:
    """A relation to another skill: "requires", "refines", "conflicts", "merged-from", "split-from", ..."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    relation: str
    skill: str
    """Id of the other skill."""

    def __post_init__(self) -> None:
        _set(self, "relation", one_line(self.relation, "a link's relation"))
        if not _ID.fullmatch(self.skill):
            raise SkillError(f"link {self.relation!r} names {self.skill!r}, which is no skill id")


@dataclass(frozen=True)
class Skill:
    """One version of a skill.

    `id` is made from what the first version says and stays; each later version has the next number. Where it stands in its
    life (candidate, active, ...) is not a property of the skill but of the bank's commit.

    >>> skill = Skill("Open the fridge before you cool anything.", kind="cool")
    >>> skill.name, skill.version, skill.id
    ('open-the-fridge-before-you-cool', 1, '139e84f358ecaf87')
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    text: str
    """What a policy reads: one paragraph, whitespace collapsed."""
    name: str = ""
    """Lower-case words joined by hyphens, at most 64 characters; made from the text when empty. Need not be unique."""
    kind: str = ""
    """Kind of task that it is for; "" = any."""
    protocol: SkillProtocol | None = None
    contract: Contract | None = None
    validator: Validator | None = None
    links: tuple[Link, ...] = ()
    id: str = ""
    """16 hexadecimal digits, computed for a first version."""
    version: int = 1

    def __post_init__(self) -> None:
        _set(self, "text", one_line(self.text, "a skill's text"))
        _set(self, "name", self.name or slug(self.text))
        if len(self.name) > NAME_LIMIT or not _NAME.fullmatch(self.name):
            raise SkillError(
                f"{self.name!r} is no skill name: lower-case letters, digits and single hyphens between them, "
                f"at most {NAME_LIMIT} characters"
            )
        if self.kind:
            _set(self, "kind", one_line(self.kind, "a skill's kind"))
        if len(self.kind) > KIND_LIMIT:
            raise SkillError(f"skill {self.name}: its kind has {len(self.kind)} characters, at most {KIND_LIMIT} are allowed")
        _set(self, "links", tuple(self.links))
        if self.version < 1:
            raise SkillError(f"skill {self.name}: versions count from 1, got {self.version}")
        if self.version == 1:
            origin = self._origin()
            _set(self, "id", self.id or origin)
            if self.id != origin:
                raise SkillError(f"skill {self.name}: the id {self.id} was made from another first version")
        if not _ID.fullmatch(self.id):
            raise SkillError(f"skill {self.name}: {self.id!r} is no skill id ({ID_LENGTH} hexadecimal digits)")

    @cached_property
    def digest(self) -> str:
        """sha256 of the canonical JSON: names this version everywhere."""
        return sha256(self.body)

    @cached_property
    def body(self) -> str:
        """Canonical JSON. Fields at their default are left out, so that a new optional field changes no old digest."""
        return canonical_json(_plain(self))

    @classmethod
    def from_body(cls, body: str | bytes) -> Self:
        """The skill that `body` describes. Raises SkillError naming what does not fit."""
        try:
            return _reader(cls).validate_json(body)
        except ValidationError as e:
            raise SkillError("; ".join(_problem(p) for p in e.errors(include_url=False))) from None

    def revised(self, version: int, **changes: Any) -> Self:
        """The same skill (by id) as a later version that says something else."""
        return replace(self, version=version, **changes)

    def _origin(self) -> str:
        says = {k: v for k, v in _plain(self).items() if k not in ("id", "version")}
        return sha256(canonical_json(says))[:ID_LENGTH]


CONTENT = tuple(f.name for f in fields(Skill) if f.name not in ("id", "version"))
"""The fields of a skill that an update may change."""


@cache
def _reader(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(v) for f in fields(value) if (v := getattr(value, f.name)) != f.default}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


def _problem(error: Any) -> str:
    where = ".".join(map(str, error["loc"])) or "skill"
    return f"{where}: {error['msg'].removeprefix('Value error, ')}"
