"""Processes as /proc shows them: what runs in which network namespace, and ending it for certain."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

NETNS_DIR = Path("/run/netns")
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Process:
    """One process; `state` is the letter of ps, `command` its argv joined by blanks."""

    pid: int
    parent_pid: int
    name: str
    state: str
    rss_bytes: int
    command: str

    @property
    def is_zombie(self) -> bool:
        return self.state in ("Z", "X")


def read_process(pid: int) -> Process | None:
    """The process with this pid, or None where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        argv = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    fields = stat[stat.rindex(")") + 2 :].split()  # fields[0] is number 3 of proc_pid_stat(5)
    return Process(
        pid=pid,
        parent_pid=int(fields[1]),
        name=name,
        state=fields[0],
        rss_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        command=argv.replace(b"\0", b" ").decode("utf-8", "replace").strip() or f"[{name}]",
    )


def all_processes() -> list[Process]:
    """Every process of the machine, zombies left out."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return _living(pids)


def in_netns(netns: str) -> list[Process]:
    """Every process whose network namespace bears this name, zombies left out."""
    try:
        wanted = os.stat(NETNS_DIR / netns)
    except OSError:
        return []
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                found = os.stat(f"/proc/{entry}/ns/net")
                if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                    pids.append(int(entry))
    return _living(pids)


def inner_pid(pid: int) -> int | None:
    """The pid a process has in a PID namespace below ours; None where it lives in ours, or is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                pids = line.split()[1:]
                return int(pids[-1]) if len(pids) > 1 else None
    return None


def send(processes: Iterable[Process], signum: signal.Signals) -> None:
    """Signal each of them that is still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signum)


def end_all(find: Callable[[], Collection[Process]], timeout_s: float = 10.0) -> bool:
    """SIGKILL what `find` finds until it finds nothing; False where something survives `timeout_s`."""

    def gone() -> bool:
        found = find()
        send(found, signal.SIGKILL)
        return not found

    return wait_until(gone, timeout_s)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until `condition` holds; whether it did within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _living(pids: Iterable[int]) -> list[Process]:
    processes = (read_process(pid) for pid in pids)
    return [process for process in processes if process is not None and not process.is_zombie]
