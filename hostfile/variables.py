"""An environment variable that says something about the hosts, and the errors that name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dslaunch.hostfile.errors import TopologyError, quoted

_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that is set, and not to blanks alone."""

    name: str
    value: str

    def refused(self, what: str, hint: str) -> TopologyError:
        """The error that says why the value cannot be used."""
        return TopologyError(f"{self.name}={quoted(self.value)}: {what}", hint)

    def number(self, low: int, high: int, hint: str) -> int:
        """The value as a number from `low` to `high`. Raises TopologyError."""
        digits = self.value.strip()
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
            raise self.refused("expects a number", hint)
        if not low <= int(digits) <= high:
            raise self.refused(f"expects a number from {low} to {high}", hint)
        return int(digits)


def find_variable(environ: Mapping[str, str], *names: str) -> Variable | None:
    """The first of `names` that is set to something."""
    return next((Variable(name, environ[name]) for name in names if environ.get(name, "").strip()), None)
