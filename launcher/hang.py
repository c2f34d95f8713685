"""Whether a running job makes progress, by what its ranks write and the processor time they use. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dslaunch.launcher import wire
from dslaunch.launcher.fold import ranges
from dslaunch.launcher.supervise import FromAgent, Input

_IDLE = 0.02
"""Of one CPU: what the threads of a library use that waits."""
_IDLE_OF_USUAL = 0.1
_MOST_IDLE = 0.1
"""A rank that uses more of a CPU than this is not idle, whatever it used before."""
_SMOOTHING = 0.1
_LONGEST_GAPS = 3.0
"""A job that has written for as long as the limit, and is silent for so many of its longest pauses, is looked
at: ranks that wait for a device use a whole CPU each."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a job is looked at. With `idle` ranks it hangs; without, it does where no stack moves."""

    silent_s: float
    idle: tuple[int, ...]

    @property
    def what(self) -> str:
        """Words that go on from `for 60 s`."""
        if not self.idle:
            return "no rank has written anything, and none has moved from its place"
        ranks = f"rank {self.idle[0]}" if len(self.idle) == 1 else f"ranks {ranges(self.idle)}"
        return f"no rank has written anything, and {ranks} used no CPU"


@dataclass(slots=True)
class _Rank:
    """`busy_at` is the launcher's time of the last sign of work; the rest is of the last Vitals."""

    busy_at: float
    sampled_ms: int = 0
    cpu_ms: int = 0
    usual: float = 0.0

    def sample(self, now: float, monotonic_ms: int, cpu_ms: int) -> None:
        spent_ms = monotonic_ms - self.sampled_ms
        if self.sampled_ms and spent_ms > 0:
            used = max(0.0, (cpu_ms - self.cpu_ms) / spent_ms)
            if used > min(_MOST_IDLE, max(_IDLE, _IDLE_OF_USUAL * self.usual)):
                self.busy_at = now
                self.usual += _SMOOTHING * (used - self.usual)
        self.sampled_ms, self.cpu_ms = monotonic_ms, cpu_ms


@dataclass(slots=True)
class HangWatch:
    """Feed it the run's inputs, and ask now and then; `now` is in seconds on a monotonic clock."""

    after_s: float
    is_strict: bool = False
    """Whether silence alone makes a job of several ranks suspect, however busy they are."""
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _wrote_first_at: float | None = None
    _wrote_at: float = 0.0
    _longest_gap_s: float = 0.0

    def on_input(self, what: Input, now: float) -> None:
        match what:
            case FromAgent(_, wire.Started(rank)):
                self._ranks[rank] = _Rank(now)
                self._wrote_at = now
            case FromAgent(_, wire.Exited(rank)):
                self._ranks.pop(rank, None)
            case FromAgent(_, wire.Output(rank)) if rank in self._ranks:
                self._ranks[rank].busy_at = now
                if self._wrote_first_at is None:
                    self._wrote_first_at = now
                self._longest_gap_s = max(self._longest_gap_s, now - self._wrote_at)
                self._wrote_at = now
            case FromAgent(_, wire.Vitals(monotonic_ms, ranks)):
                for rank, cpu_ms in _cpu_times(ranks):
                    if rank in self._ranks:
                        self._ranks[rank].sample(now, monotonic_ms, cpu_ms)
            case _:
                pass

    def silent_s(self, now: float) -> float:
        """Since the last output of any rank, or the start of the last; 0 before that."""
        return now - self._wrote_at if self._ranks else 0.0

    def suspicion(self, now: float) -> Suspicion | None:
        """None while there is progress. A rank whose host is silent is idle."""
        silent_s = self.silent_s(now)
        if not self._ranks or silent_s < self.after_s:
            return None
        idle = [rank for rank, seen in self._ranks.items() if now - seen.busy_at >= self.after_s]
        is_suspect = self.is_strict or self._was_regular(silent_s)
        if idle or (is_suspect and len(self._ranks) > 1):
            return Suspicion(silent_s, tuple(sorted(idle)))
        return None

    def _was_regular(self, silent_s: float) -> bool:
        wrote_for_s = 0.0 if self._wrote_first_at is None else self._wrote_at - self._wrote_first_at
        return wrote_for_s >= self.after_s and silent_s >= _LONGEST_GAPS * self._longest_gap_s

    def begin_anew(self, now: float) -> None:
        """Forget the present pause."""
        self._wrote_at = now
        for seen in self._ranks.values():
            seen.busy_at = now


def _cpu_times(ranks: Iterable[str]) -> Iterable[tuple[int, int]]:
    for words in map(str.split, ranks):
        yield int(words[0]), int(words[2])
