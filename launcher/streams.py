"""Cut what ranks write into whole lines, and remember the last of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dslaunch.launcher import wire
from dslaunch.launcher.supervise import FromAgent, Input

MAX_LINE_BYTES = 1 << 20
"""A longer line is shown in pieces of this size."""
NUM_TAIL_LINES = 200
"""Enough for the traceback before a library's own stack dump."""


@dataclass(slots=True)
class LineStream:
    """One stream of one rank. Feed it chunks cut anywhere; it gives back whole lines without their ends.

    A line that was rewritten with `\\r` gives its last state, as a terminal would show it.
    """

    tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=NUM_TAIL_LINES))
    _rest: bytes = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes."""
        data = self._rest + data
        *lines, self._rest = data.split(b"\n")
        while len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        if b"\r" in data:
            lines = [_last_state(line) for line in lines]
        self.tail.extend(lines[-NUM_TAIL_LINES:])
        return lines

    def end(self) -> list[bytes]:
        """The unfinished last line, if there is one."""
        lines = [_last_state(self._rest)] if self._rest else []
        self._rest = b""
        self.tail.extend(lines)
        return lines


def _last_state(line: bytes) -> bytes:
    return line.removesuffix(b"\r").rpartition(b"\r")[2]


@dataclass(frozen=True, slots=True)
class Lines:
    """What one stream of one rank has added: whole lines, and the bytes as they came."""

    node_rank: int
    rank: int
    stream: int
    lines: tuple[bytes, ...]
    raw: bytes


class RankStreams:
    """The streams of all ranks."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, int], LineStream] = {}

    def feed(self, what: Input) -> Iterator[Lines]:
        """What an input adds: output, or the unfinished lines of a rank that has ended."""
        match what:
            case FromAgent(node_rank, wire.Output(rank, stream, text)):
                raw = text.encode("utf-8", "surrogateescape")
                yield Lines(node_rank, rank, stream, tuple(self._stream(rank, stream).feed(raw)), raw)
            case FromAgent(node_rank, wire.Exited(rank)):
                for stream in (1, 2):
                    rest = tuple(self._stream(rank, stream).end())
                    if rest:
                        yield Lines(node_rank, rank, stream, rest, b"")

    def tail(self, rank: int) -> Sequence[str]:
        """The last lines of a rank's stderr, or of its stdout where it wrote none."""
        lines = self._stream(rank, 2).tail or self._stream(rank, 1).tail
        return [line.decode("utf-8", "replace") for line in lines]

    def _stream(self, rank: int, stream: int) -> LineStream:
        return self._streams.setdefault((rank, stream), LineStream())
