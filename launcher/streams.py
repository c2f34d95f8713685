"""Cut what ranks write into whole lines, and remember the last of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_LINE_BYTES = 1 << 20
"""A longer line is shown in pieces of this size."""
NUM_TAIL_LINES = 20


@dataclass(slots=True)
class LineStream:
    """One stream of one rank. Feed it chunks cut anywhere; it gives back whole lines without their ends.

    A line that was rewritten with `\\r` gives its last state, as a terminal would show it.
    """

    tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=NUM_TAIL_LINES))
    _rest: bytes = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield self._keep(line)
        while len(self._rest) > MAX_LINE_BYTES:
            piece, self._rest = self._rest[:MAX_LINE_BYTES], self._rest[MAX_LINE_BYTES:]
            yield self._keep(piece)

    def end(self) -> Iterator[bytes]:
        """The unfinished last line, if there is one."""
        rest, self._rest = self._rest, b""
        if rest:
            yield self._keep(rest)

    def _keep(self, line: bytes) -> bytes:
        line = line.removesuffix(b"\r").rpartition(b"\r")[2]
        self.tail.append(line)
        return line
