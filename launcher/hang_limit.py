"""`--hang_timeout`: what is done about a job without progress, and after how long. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

DEFAULT_WARN_S = 900.0
"""Longer than the pauses of healthy jobs, and than NCCL's own limit of 600 s."""
MIN_S = 2.0
"""What ranks use is told once a second."""


@dataclass(frozen=True, slots=True)
class HangLimit:
    """A job without progress for `after_s` is ended, or there is a word about it; infinite for never."""

    after_s: float
    kill: bool

    @property
    def is_off(self) -> bool:
        return math.isinf(self.after_s)

    def __str__(self) -> str:
        if self.is_off:
            return "off"
        return f"{self.after_s:g}" if self.kill else f"warn:{self.after_s:g}"


DEFAULT = HangLimit(DEFAULT_WARN_S, kill=False)


def parse_hang_limit(text: str) -> HangLimit:
    """`off`, `warn`, `warn:S` or S seconds. Raises ValueError for anything else, and below 2 s."""
    if text == "off":
        return HangLimit(math.inf, kill=False)
    word, colon, number = text.rpartition(":")
    if text == "warn":
        return DEFAULT
    if word not in ("", "warn") or (colon and not word):
        raise ValueError(f"{text!r} is not off, warn, warn:SECONDS or SECONDS")
    try:
        after_s = float(number)
    except ValueError:
        raise ValueError(f"{text!r} is not off, warn, warn:SECONDS or SECONDS") from None
    if not math.isfinite(after_s) or after_s < MIN_S:
        raise ValueError(f"{number} is not a number of seconds from {MIN_S:g} on")
    return HangLimit(after_s, kill=not word)
