"""One stream with the output of many processes, as pdsh, srun or mpirun print it, told apart again."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

# No label of any tool is longer.
_MAX_LABEL_BYTES = 320


@dataclass(slots=True)
class Sorted:
    """Whole lines, by whose they are."""

    lines: defaultdict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Of the processes, by their place in `GroupCommand.hosts`, without labels, in the order they came."""
    own: list[bytes] = field(default_factory=list)
    """Without a known label: the tool's own words."""


class Demultiplexer(Protocol):
    """Takes chunks that end anywhere; a line of any length waits until all of it is there."""

    def feed(self, chunk: bytes) -> Sorted:
        """The lines that this chunk completes."""

    def end(self) -> Sorted:
        """What is left: lines without their newline."""


class LabelledLines:
    """Of a tool that prints whole lines, with a label before each.

    The only group of `label` names the process, as a key of `indices`. Where `piece_bytes` is not None, the
    tool breaks lines into pieces of so many bytes and gives each a label and a newline: a shorter one is
    the last of its line.
    """

    def __init__(
        self, label: re.Pattern[bytes], indices: Mapping[bytes, int], piece_bytes: int | None = None
    ) -> None:
        self._label = label
        self._indices = indices
        self._piece_bytes = piece_bytes
        self._partial: list[bytes] = []
        self._pieces: defaultdict[int, list[bytes]] = defaultdict(list)

    def feed(self, chunk: bytes) -> Sorted:
        """The lines that this chunk completes."""
        found = Sorted()
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._partial.append(chunk)
            return found
        whole = b"".join([*self._partial, head])
        self._partial = [rest] if rest else []
        for line in whole.split(b"\n"):
            self._sort(line, b"\n", found)
        return found

    def end(self) -> Sorted:
        """What is left: lines without their newline."""
        found = Sorted()
        if self._partial:
            self._sort(b"".join(self._partial), b"", found)
        for index, pieces in self._pieces.items():
            found.lines[index].append(b"".join(pieces))
        self._partial = []
        self._pieces.clear()
        return found

    def _sort(self, line: bytes, newline: bytes, found: Sorted) -> None:
        match = self._label.match(line)
        index = None if match is None else self._indices.get(match[1])
        if match is None or index is None:
            found.own.append(line + newline)
            return
        text = line[match.end() :]
        if len(text) == self._piece_bytes:
            self._pieces[index].append(text)
        else:
            found.lines[index].append(b"".join([*self._pieces.pop(index, ()), text, newline]))


class LabelledPieces:
    """Of a tool that prints what each process has written piece by piece, with a label before each piece.

    A piece ends before the next label or after a newline, so that lines of several processes stand inside
    one another. The only group of `label` is the index, a decimal number; `first` is its first byte.
    """

    def __init__(self, label: re.Pattern[bytes], first: bytes, num_hosts: int) -> None:
        self._label = label
        self._first = first
        self._num_hosts = num_hosts
        self._held = b""
        self._owner: int | None = None
        self._partial: defaultdict[int | None, list[bytes]] = defaultdict(list)

    def feed(self, chunk: bytes) -> Sorted:
        """The lines that this chunk completes."""
        found = Sorted()
        data = self._held + chunk
        kept = self._len_without_half_a_label(data)
        self._held = data[kept:]
        self._sort(data[:kept], found)
        return found

    def end(self) -> Sorted:
        """What is left: lines without their newline."""
        found = Sorted()
        self._sort(self._held, found)
        self._held = b""
        for owner, pieces in self._partial.items():
            self._emit(owner, b"".join(pieces), found)
        self._partial.clear()
        return found

    def _sort(self, data: bytes, found: Sorted) -> None:
        start = 0
        for match in self._label.finditer(data):
            self._take(data[start : match.start()], found)
            index = int(match[1])
            self._owner = index if index < self._num_hosts else None
            start = match.end()
        self._take(data[start:], found)

    def _take(self, text: bytes, found: Sorted) -> None:
        line, newline, words = text.partition(b"\n")
        if newline:
            self._emit(self._owner, b"".join([*self._partial.pop(self._owner, ()), line, newline]), found)
            self._owner = None
            *whole, words = words.split(b"\n")
            for own in whole:
                self._emit(None, b"".join([*self._partial.pop(None, ()), own, newline]), found)
        else:
            words = line
        if words:
            self._partial[self._owner].append(words)

    def _emit(self, owner: int | None, line: bytes, found: Sorted) -> None:
        (found.own if owner is None else found.lines[owner]).append(line)

    def _len_without_half_a_label(self, data: bytes) -> int:
        start = data.rfind(self._first, max(0, len(data) - _MAX_LABEL_BYTES))
        if start < 0 or b"\n" in data[start:] or self._label.match(data, start):
            return len(data)
        return start
