"""The processes of one job, wherever they hide: by a variable that all of them inherit, and by their host."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MARKER = "NCCL_BENCH_JOB"
"""Launchers forward NCCL_* to the ranks."""
_KILL_S = 5.0


@dataclass(frozen=True, slots=True)
class Found:
    """A process of the job; `host` is empty for this machine itself."""

    pid: int
    host: str


class Marked:
    """Finds processes that have started since it was made and belong to the job.

    They are those that carry the marker, and on the job's own hosts all but the SSH server's: an agent there
    has its environment from sshd. A zombie has neither, and counts as gone.
    """

    def __init__(self, job: str, namespaces: Mapping[str, str]) -> None:
        """`namespaces`: path of a host's network namespace -> its name."""
        self._mark = f"{MARKER}={job}".encode()
        self._hosts = {_identity(path): host for path, host in namespaces.items()}
        self._older = frozenset(_pids())

    def find(self) -> list[Found]:
        found = []
        for pid in _pids():
            if pid in self._older:
                continue
            with contextlib.suppress(OSError):
                host = self._hosts.get(_identity(f"/proc/{pid}/ns/net"), "")
                if self._carries_mark(pid) or (host and self._is_of_job(pid)):
                    found.append(Found(pid, host))
        return found

    def kill(self) -> None:
        """End what is left, and what that starts while it is being ended."""
        deadline = time.monotonic() + _KILL_S
        while (left := self.find()) and time.monotonic() < deadline:
            for found in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found.pid, signal.SIGKILL)
            time.sleep(0.01)

    def _carries_mark(self, pid: int) -> bool:
        return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    def _is_of_job(self, pid: int) -> bool:
        fields = Path(f"/proc/{pid}/stat").read_text()
        name, _, rest = fields.partition("(")[2].rpartition(")")
        return not name.startswith("sshd") and rest.split()[0] not in ("Z", "X")


def rank_of(pid: int) -> int | None:
    """The rank that a process is, by its command line and environment; None for any other process."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        is_payload = any(word.endswith(b"chaos/rank.py") for word in words[:4])
        if is_payload and not any(b"launch" in word or b"torchrun" in word for word in words[:2]):
            variables = dict(
                part.partition(b"=")[::2] for part in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            )
            rank = variables.get(b"RANK", variables.get(b"OMPI_COMM_WORLD_RANK"))
            return None if rank is None else int(rank)
    return None


def parent(pid: int) -> int:
    """OSError where it is gone."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat[stat.rindex(")") + 2 :].split()[1])


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
