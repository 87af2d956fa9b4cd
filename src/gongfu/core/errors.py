"""One exception tree. Every message says what was wrong, where, and what to do."""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigError",
    "EngineError",
    "EnvError",
    "EnvTimeout",
    "GongfuError",
    "MissingExtra",
    "ModelError",
    "RunFolderError",
    "TaskError",
    "TokenError",
]


class GongfuError(Exception):
    """Root of all errors that gongfu raises on purpose."""


class ConfigError(GongfuError, ValueError):
    """A recipe, an override or a combination of settings cannot be used."""


class MissingExtra(GongfuError, ImportError):
    """A feature needs packages that are not installed.

    >>> str(MissingExtra("the official ALFWorld engine", "alfworld"))
    'the official ALFWorld engine needs an extra: pip install "gongfu[alfworld]"'
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f'{feature} needs an extra: pip install "gongfu[{extra}]"')
        self.feature = feature
        self.extra = extra

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.feature, self.extra)


class ModelError(GongfuError):
    """Model weights or a tokenizer are missing, damaged or of the wrong kind."""


class TokenError(GongfuError, ValueError):
    """Token ids, masks or spans do not fit together."""


class EngineError(GongfuError, RuntimeError):
    """An engine could not do what it was asked."""


class TaskError(GongfuError, ValueError):
    """A task, a task file or a split is unusable."""


class EnvError(GongfuError, RuntimeError):
    """An environment raised, died or broke its protocol. Costs one episode; the run only where no episode of a step is left."""


class EnvTimeout(EnvError, TimeoutError):
    """An environment did not answer within its dead-line."""


class CheckpointError(GongfuError):
    """A checkpoint is missing, torn, tampered with or belongs to another run."""


class RunFolderError(GongfuError):
    """A run folder is in use, unwritable or not a run folder."""
