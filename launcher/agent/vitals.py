"""What each rank's processes use: processor time and memory, theirs and their children's (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dslaunch.launcher.agent.family import descendants
from dslaunch.launcher.agent.process import RankProcess

_TICK_MS = 1000 // os.sysconf("SC_CLK_TCK")
_CHILDREN_EVERY = 5
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


class VitalSigns:
    """Samples of a node's ranks. Children are looked for now and then: each thread has a list of its own."""

    def __init__(self, ranks: Mapping[int, RankProcess]) -> None:
        """`ranks` by pid, also those that are started later."""
        self._ranks = ranks
        self._children: dict[int, list[int]] = {}
        self._num_samples = 0

    def sample(self) -> tuple[str, ...]:
        """For each living rank `rank state cpu_ms rss_kib`, ended children's time included."""
        living = [process for process in self._ranks.values() if process.returncode is None]
        if self._num_samples % _CHILDREN_EVERY == 0:
            self._children = {process.pid: descendants(process.pid) for process in living}
        self._num_samples += 1
        return tuple(self._of(process) for process in living)

    def _of(self, process: RankProcess) -> str:
        cpu_ms = rss_kib = 0
        state = "Z"
        for pid in (process.pid, *self._children.get(process.pid, ())):
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
