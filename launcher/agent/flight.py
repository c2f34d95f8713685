"""torch's flight recorder of collectives: switched on where nobody has, asked for its dumps, and these read.

A rank that has an NCCL group listens on a pipe and writes a dump when something comes; torch also writes one
before it gives a collective up (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp).
"""

from __future__ import annotations

import contextlib
import os
from binascii import b2a_base64
from collections.abc import Collection, Iterator, Mapping
from zlib import compress

from dslaunch.launcher.wire import FlightPiece

_STEM = "nccl_"
_OLD_NAMES = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
"""torch warns of these where they are set."""
_NUM_ENTRIES = "2000"
_MAX_BYTES = 8 << 20
"""Of a compressed dump: 2000 entries with their stacks take a tenth of it."""
_PIECE_CHARS = 28_000
_STABLE_S = 0.1

_Status = tuple[int, int]


def environment(folder: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What a rank's environment gains, where it says nothing of its own."""
    stem = os.path.join(folder, _STEM)
    told = {
        "TORCH_FR_BUFFER_SIZE": _NUM_ENTRIES,
        "TORCH_FR_DUMP_TEMP_FILE": stem,
        "TORCH_FR_DEBUG_INFO_PIPE_FILE": stem,  # of other libraries than NCCL
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": stem,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    return {
        name: value
        for name, value in told.items()
        if name not in environ and _OLD_NAMES.get(name, name) not in environ
    }


class FlightDumps:
    """The dumps of a node's ranks in a folder; each version of one is told once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._told: dict[int, _Status] = {}
        self._awaited: dict[int, _Status | None] = {}
        self._seen: dict[int, tuple[_Status | None, float]] = {}

    def ask(self, ranks: Collection[int]) -> None:
        """Have those of the ranks that listen write a dump."""
        self._awaited.clear()
        for rank in filter(ranks.__contains__, self._numbers(".pipe")):
            before = self._status(rank)
            with contextlib.suppress(OSError):  # nobody listens any more
                fd = os.open(self._path(rank) + ".pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    os.write(fd, b"1")
                finally:
                    os.close(fd)
                self._awaited[rank] = before
        self._seen = {rank: (before, 0.0) for rank, before in self._awaited.items()}

    def have_answered(self, now: float) -> bool:
        """Whether every rank that was asked has written its dump, and writes no more."""
        for rank, (last, _) in list(self._seen.items()):
            status = self._status(rank)
            if status != last:
                self._seen[rank] = (status, now)
        return all(
            status != self._awaited[rank] and now > changed_at + _STABLE_S
            for rank, (status, changed_at) in self._seen.items()
        )

    def new_ones(self) -> Iterator[FlightPiece]:
        """Frames with the dumps that have not been told yet."""
        for rank in self._numbers(""):
            status = self._status(rank)
            if status is None or status == self._told.get(rank):
                continue
            self._told[rank] = status
            with contextlib.suppress(OSError), open(self._path(rank), "rb") as file:
                yield from _pieces(rank, compress(file.read()))

    def _numbers(self, suffix: str) -> list[int]:
        """Ranks that have a file `nccl_<rank><suffix>`."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        numbers = [name[len(_STEM) : len(name) - len(suffix)] for name in names if name.startswith(_STEM)]
        return sorted(
            int(number) for number in numbers if number.isdecimal() and f"{_STEM}{number}{suffix}" in names
        )

    def _path(self, rank: int) -> str:
        return os.path.join(self._folder, f"{_STEM}{rank}")

    def _status(self, rank: int) -> _Status | None:
        try:
            status = os.stat(self._path(rank))
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size


def _pieces(rank: int, data: bytes) -> Iterator[FlightPiece]:
    if len(data) > _MAX_BYTES:
        return
    text = b2a_base64(data, newline=False).decode("ascii")
    for start in range(0, len(text), _PIECE_CHARS):
        yield FlightPiece(rank, text[start : start + _PIECE_CHARS], start + _PIECE_CHARS >= len(text))
