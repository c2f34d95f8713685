"""Bracket ranges, `worker-[0-3,7]`, and index lists, `0-2,5`: short text for many names or numbers."""

from __future__ import annotations

import itertools
import re

from dslaunch.hostfile.errors import TopologyError, quoted

MAX_EXPANSION = 65536
"""The most names or indices one piece of text may stand for; beyond it a typing error is likelier."""

# A bracket with a ':' inside is an IPv6 address, not a range.
_BRACKET = re.compile(r"\[([^\[\]:]*)\]")
_PART = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)

_RANGE_HINT = "a range reads worker-[0-3,7]: numbers and low-high pairs with ',' between them"
_INDEX_HINT = "slots read 0,2 or 0-3: numbers and low-high pairs with ',' between them"


def expand_names(text: str) -> tuple[str, ...]:
    """The names that `text` stands for, in the order written; the leftmost bracket varies slowest.

    Zero padding is kept: `n[08-10]` is n08, n09, n10. Text without a range stands for itself.
    Raises TopologyError for a malformed range, and for more than `MAX_EXPANSION` names.
    """
    literals_and_ranges = _BRACKET.split(text)
    columns: list[tuple[str, ...]] = []
    num_names = 1
    for i, piece in enumerate(literals_and_ranges):
        columns.append(_numerals(piece, _RANGE_HINT) if i % 2 else (piece,))
        num_names *= len(columns[-1])
        if num_names > MAX_EXPANSION:
            raise TopologyError(f"{quoted(text)} stands for more than {MAX_EXPANSION} hosts", _RANGE_HINT)
    return tuple("".join(name) for name in itertools.product(*columns))


def expand_indices(text: str) -> tuple[int, ...]:
    """The numbers that `text` stands for, in the order written, doubles included.

    Blanks around numbers are tolerated, as DeepSpeed does.
    Raises TopologyError for anything but numbers and low-high pairs.
    """
    return tuple(int(numeral) for numeral in _numerals(text, _INDEX_HINT))


def _numerals(text: str, hint: str) -> tuple[str, ...]:
    numerals: list[str] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            got = f"{quoted(part.strip())} in {quoted(text)}" if "," in text else quoted(text)
            raise TopologyError(f"expects a number or low-high, but got {got}", hint)
        low, high = match[1], match[2] or match[1]
        if max(len(low), len(high)) > 9:
            raise TopologyError(f"number too large in {quoted(text)}", hint)
        width = len(low) if low.startswith("0") else 0
        if high.startswith("0") and len(high) > 1 and len(high) != width:
            raise TopologyError(f"{quoted(part.strip())} mixes zero-padded widths", hint)
        if int(low) > int(high):
            raise TopologyError(f"{quoted(part.strip())} counts down", hint)
        if len(numerals) + int(high) - int(low) >= MAX_EXPANSION:
            raise TopologyError(f"{quoted(text)} stands for more than {MAX_EXPANSION} numbers", hint)
        numerals.extend(str(number).zfill(width) for number in range(int(low), int(high) + 1))
    return tuple(numerals)
