"""The engine's errors: what is wrong, and what to do next."""

from __future__ import annotations


class EngineError(RuntimeError, AssertionError):
    """Something the engine refuses or cannot do.

    `what` names the thing and the trouble in one short phrase; `hint` is the next action. Scripts catch it
    as they catch DeepSpeed's errors, which are mostly assertions.
    """

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\nhint: {self.hint}"


class ConfigError(EngineError, ValueError):
    """The configuration is wrong, or asks for what this engine does not do; `path` is the key, if any."""

    def __init__(self, what: str, hint: str, path: str = "") -> None:
        super().__init__(what, hint)
        self.path = path


class CheckpointError(EngineError):
    """A checkpoint could not be written, or is damaged, or does not fit the model."""
