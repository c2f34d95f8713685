"""Bracket ranges, `worker-[0-3,7]`, and index lists, `0-2,5`: short text for many names or numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from dslaunch.hostfile.errors import TopologyError, quoted

MAX_EXPANSION = 65536
"""The most names or indices one piece of text may stand for; beyond it a typing error is likelier."""

# A bracket with a ':' inside is an IPv6 address, not a range.
_BRACKET = re.compile(r"\[([^\[\]:]*)\]")
_PART = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_COMMA = re.compile(r",(?![^\[\]]*\])")
_NUMERAL = re.compile(r"(\d+)", re.ASCII)
_MAX_DIGITS = 9

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


def expand_name_list(text: str) -> tuple[str, ...]:
    """The names of a list as Slurm writes it, `node[01-03,7],gpu5`: commas outside brackets part its items.

    Raises TopologyError as `expand_names` does.
    """
    names: list[str] = []
    for item in _COMMA.split(text):
        names.extend(expand_names(item.strip()))
        if len(names) > MAX_EXPANSION:
            raise TopologyError(f"{quoted(text)} stands for more than {MAX_EXPANSION} hosts", _RANGE_HINT)
    return tuple(names)


def fold_names(names: Iterable[str]) -> str:
    """The shortest list `expand_name_list` understands for these host names: `worker-[0-3,7],gpu5`.

    Names that differ in numbers alone are drawn together where they first stood, numbers counting up;
    doubles are dropped. IPv6 addresses stay as they are.
    """
    patterns: dict[tuple[str, ...], list[tuple[frozenset[str], ...]]] = {}
    for name in dict.fromkeys(names):
        literals, numerals = _split_numerals(name)
        patterns.setdefault(literals, []).append(tuple(frozenset((numeral,)) for numeral in numerals))
    items = []
    for literals, blocks in patterns.items():
        for block in _merged(blocks):
            columns = [_column(numerals) for numerals in block]
            items.append("".join(itertools.chain.from_iterable(zip(literals, [*columns, ""], strict=True))))
    return ",".join(items)


def _split_numerals(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What stands around the numbers of a name, and the numbers; those too long to expand count as text."""
    literals, numerals = [""], []
    for i, piece in enumerate([name] if ":" in name else _NUMERAL.split(name)):
        if i % 2 and len(piece) <= _MAX_DIGITS:
            numerals.append(piece)
            literals.append("")
        else:
            literals[-1] += piece
    return tuple(literals), tuple(numerals)


def _merged(blocks: list[tuple[frozenset[str], ...]]) -> list[tuple[frozenset[str], ...]]:
    """Blocks that differ in one column alone become one, the last column first. A block is a product."""
    for axis in reversed(range(len(blocks[0]))):
        by_rest: dict[tuple[frozenset[str], ...], frozenset[str]] = {}
        for block in blocks:
            rest = block[:axis] + block[axis + 1 :]
            by_rest[rest] = by_rest.get(rest, frozenset()) | block[axis]
        blocks = [(*rest[:axis], numerals, *rest[axis:]) for rest, numerals in by_rest.items()]
    return blocks


def _column(numerals: frozenset[str]) -> str:
    runs = list(_runs(numerals))
    if len(numerals) == 1:
        return runs[0][0]
    return "[" + ",".join(low if low == high else f"{low}-{high}" for low, high in runs) + "]"


def _runs(numerals: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Lows and highs that `_numerals` expands to exactly these, padding and all."""
    left = dict.fromkeys(sorted(numerals, key=lambda numeral: (int(numeral), len(numeral))))
    while left:
        low = high = next(iter(left))
        width = len(low) if low.startswith("0") else 0
        while high in left:
            del left[high]
            following = str(int(high) + 1).zfill(width)
            if following not in left:
                break
            high = following
        yield low, high


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
        if max(len(low), len(high)) > _MAX_DIGITS:
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
