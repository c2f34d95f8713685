"""Numbers of things, in words. Pure."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 host`, `4 hosts`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
