"""What is known of each rank of a running job, for those who ask."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from dslaunch.launcher import wire
from dslaunch.launcher.plan import LaunchPlan
from dslaunch.launcher.streams import Lines
from dslaunch.launcher.supervise import FromAgent, Input

NUM_KEPT_LINES = 100
_MAX_KEPT_BYTES = 2000
"""Of one line."""


@dataclass(slots=True)
class KnownRank:
    """One rank. `cpu` is the part of one CPU that it used in the last second, None where it is not known.

    The device's use is None where no driver tells it, `returncode` while the rank runs; `lines` are the last
    it wrote, each with its stream.
    """

    rank: int
    host: str
    pid: int = 0
    state: str = ""
    cpu: float | None = None
    rss_bytes: int = 0
    wrote_at: float | None = None
    returncode: int | None = None
    slot: int = 0
    gpu_percent: int | None = None
    gpu_mib: int | None = None
    lines: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=NUM_KEPT_LINES))
    sampled_ms: int = 0
    cpu_ms: int = 0

    def as_record(self) -> dict[str, object]:
        """For JSON; `quiet_s` since its last line, or None."""
        return {
            "rank": self.rank,
            "host": self.host,
            "pid": self.pid,
            "state": self.state,
            "cpu": self.cpu,
            "rss_bytes": self.rss_bytes,
            "quiet_s": None if self.wrote_at is None else time.monotonic() - self.wrote_at,
            "returncode": self.returncode,
            "gpu_percent": self.gpu_percent,
            "gpu_mib": self.gpu_mib,
        }


class KnownRanks:
    """Listens to the inputs of an attempt, and to the lines of its ranks."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.by_rank = {
            rank.rank: KnownRank(rank.rank, node.host, slot=rank.slot)
            for node in plan.launched
            for rank in node.ranks
        }
        self._of_node = {node.node_rank: [rank.rank for rank in node.ranks] for node in plan.launched}

    def on_input(self, what: Input) -> None:
        match what:
            case FromAgent(_, wire.Started(rank, pid)):
                self.by_rank[rank].pid = pid
                self.by_rank[rank].state = "S"
            case FromAgent(_, wire.Exited(rank, returncode)):
                known = self.by_rank[rank]
                known.returncode, known.state, known.cpu, known.rss_bytes = returncode, "", None, 0
            case FromAgent(_, wire.Vitals(monotonic_ms, ranks)):
                self._sample(monotonic_ms, ranks)
            case FromAgent(node_rank, wire.DeviceUse(devices)):
                self._use(node_rank, devices)
            case FromAgent(_, wire.Output(rank)):
                self.by_rank[rank].wrote_at = time.monotonic()
            case _:
                pass

    def _sample(self, monotonic_ms: int, ranks: Iterable[str]) -> None:
        for rank, state, cpu_ms, rss_kib in map(str.split, ranks):
            known = self.by_rank[int(rank)]
            if known.sampled_ms and monotonic_ms > known.sampled_ms:
                known.cpu = max(0, int(cpu_ms) - known.cpu_ms) / (monotonic_ms - known.sampled_ms)
            known.state, known.rss_bytes = state, int(rss_kib) * 1024
            known.sampled_ms, known.cpu_ms = monotonic_ms, int(cpu_ms)

    def _use(self, node_rank: int, devices: Iterable[str]) -> None:
        for slot, used_mib, busy_percent in map(str.split, devices):
            for rank in self._of_node[node_rank]:
                known = self.by_rank[rank]
                if known.slot == int(slot):
                    known.gpu_mib, known.gpu_percent = int(used_mib), int(busy_percent)

    def on_lines(self, what: Lines) -> None:
        kept = self.by_rank[what.rank].lines
        kept.extend((what.stream, line[:_MAX_KEPT_BYTES]) for line in what.lines[-NUM_KEPT_LINES:])
