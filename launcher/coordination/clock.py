"""How far node 0's clock is from this one: Cristian's method over the heartbeats. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_NUM_SAMPLES = 8


@dataclass(slots=True)
class ClockOffset:
    """Of the last round trips the quickest counts: its error is at most half its length."""

    _samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))

    def measured(self, sent_ns: int, there_ns: int, received_ns: int) -> None:
        """One round trip: sent and received on this clock, answered on the other."""
        if sent_ns <= received_ns:
            self._samples.append((received_ns - sent_ns, there_ns - (sent_ns + received_ns) // 2))

    @property
    def offset_ns(self) -> int | None:
        """What to add to this clock to have the other; None before the first round trip."""
        return min(self._samples)[1] if self._samples else None
