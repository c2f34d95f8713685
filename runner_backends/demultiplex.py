"""One stream of labelled lines, as pdsh or srun print it, told apart again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Labels:
    """How a tool marks a line: `pattern` at its start, whose only group names the process."""

    pattern: re.Pattern[bytes]
    indices: Mapping[bytes, int]
    """The place in `GroupCommand.hosts`, by what the group holds."""


@dataclass(slots=True)
class Sorted:
    """Whole lines, by whose they are."""

    lines: dict[int, list[bytes]] = field(default_factory=dict)
    """Of the processes, without labels, in the order they came."""
    own: list[bytes] = field(default_factory=list)
    """Without a known label: the tool's own words."""


class Demultiplexer:
    """Takes chunks that end anywhere; a line of any length waits until all of it is there."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._partial: list[bytes] = []

    def feed(self, chunk: bytes) -> Sorted:
        """The lines that this chunk completes."""
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._partial.append(chunk)
            return Sorted()
        whole = b"".join([*self._partial, head])
        self._partial = [rest] if rest else []
        return self._sort(line + b"\n" for line in whole.split(b"\n"))

    def end(self) -> Sorted:
        """What is left, a line without its newline."""
        rest, self._partial = b"".join(self._partial), []
        return self._sort([rest] if rest else [])

    def _sort(self, lines: Iterable[bytes]) -> Sorted:
        found = Sorted()
        for line in lines:
            match = self._labels.pattern.match(line)
            index = None if match is None else self._labels.indices.get(match[1])
            if match is None or index is None:
                found.own.append(line)
            else:
                found.lines.setdefault(index, []).append(line[match.end() :])
        return found
