"""Someone at the other end of a job's socket who is told what happens, and what is written to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

_MAX_BEHIND_BYTES = 8 << 20
"""A listener that is further behind misses lines: the job does not wait for it."""

Record = Mapping[str, object]


def encode(record: Record) -> bytes:
    """One line."""
    return json.dumps(record).encode("ascii") + b"\n"


def line_record(rank: int, stream: int, line: bytes) -> Record:
    return {"rank": rank, "stream": stream, "line": line.decode("utf-8", "surrogateescape")}


def shown_record(fd: int, data: bytes) -> Record:
    return {"fd": fd, "data": data.decode("utf-8", "surrogateescape")}


class Listener:
    """Someone who gets lines until the job ends; `ranks` is None for the console."""

    def __init__(self, writer: asyncio.StreamWriter, ranks: frozenset[int] | None) -> None:
        self._writer = writer
        self.ranks = ranks
        self._num_missed = 0

    def tell(self, record: Record) -> None:
        if self._writer.transport.get_write_buffer_size() > _MAX_BEHIND_BYTES:
            self._num_missed += 1
            return
        if self._num_missed:
            self._writer.write(encode({"missed": self._num_missed}))
            self._num_missed = 0
        self._writer.write(encode(record))
