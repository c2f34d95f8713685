"""What each rank's processes use: processor time and memory, theirs and their children's (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterable

from dslaunch.launcher.agent.family import descendants
from dslaunch.launcher.agent.process import RankProcess

_TICK_MS = 1000 // os.sysconf("SC_CLK_TCK")
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


def vitals(ranks: Iterable[RankProcess]) -> tuple[str, ...]:
    """For each living rank `rank state cpu_ms rss_kib`, ended children's time included."""
    return tuple(_of(process) for process in ranks if process.returncode is None)


def _of(process: RankProcess) -> str:
    cpu_ms = rss_kib = 0
    state = "Z"
    for pid in (process.pid, *descendants(process.pid)):
        fields = _stat(pid)
        if fields:
            cpu_ms += sum(map(int, fields[11:15])) * _TICK_MS
            rss_kib += int(fields[21]) * _PAGE_KIB
            state = fields[0] if pid == process.pid else state
    return f"{process.rank} {state} {cpu_ms} {rss_kib}"


def _stat(pid: int) -> list[str]:
    """The fields from the state on: the name before it may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
