"""What ranks and devices use, kept in the run's folder: more rarely the longer a run lasts."""

from __future__ import annotations

import json
import time
from pathlib import Path

from dslaunch.launcher import wire

_LEAST_S = 2.0
_SHARE = 1 / 300
"""Of the run's age, between two samples of a node: a day is then about 1,800 samples."""


class UsageLog:
    """Appends to `usage.jsonl`: a line for each sample that is kept."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where it cannot be written to."""
        self._file = path.open("a", encoding="utf-8")
        self._opened_at = time.monotonic()
        self._next_at: dict[tuple[int, str], float] = {}

    def note(self, node_rank: int, sample: wire.Vitals | wire.DeviceUse) -> None:
        """Keep it, or pass it over because it comes too soon after the last one."""
        now = time.monotonic()
        what = "ranks" if isinstance(sample, wire.Vitals) else "devices"
        if now < self._next_at.get((node_rank, what), 0.0):
            return
        self._next_at[node_rank, what] = now + max(_LEAST_S, (now - self._opened_at) * _SHARE)
        used = sample.ranks if isinstance(sample, wire.Vitals) else sample.devices
        record = {"launcher_time_ns": time.time_ns(), "node_rank": node_rank, what: used}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
