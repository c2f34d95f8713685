"""How far a node's clock is from the launcher's, so that exits on several nodes can be put in order. Pure.

As in NTP (RFC 5905, section 8): a heartbeat that was answered gives an offset, wrong by half of the way's
asymmetry at most; the answer with the shortest way counts.
"""

from __future__ import annotations

from dataclasses import dataclass

_UNANSWERED_NS = 10**12
"""The way of a heartbeat that answers none: longer than that of any that does."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The best estimate so far. `offset_ns` is added to the node's time to give the launcher's.

    `way_ns` is the time that the heartbeat of this estimate was under way, there and back.
    """

    offset_ns: int = 0
    way_ns: int = _UNANSWERED_NS + 1

    def heard(self, *, echo_ns: int, sent_ns: int, now_ns: int) -> ClockOffset:
        """After a heartbeat: `sent_ns` by the node's clock, `echo_ns` and `now_ns` by the launcher's.

        `echo_ns` is the time of the launcher's heartbeat that it answers, 0 where it answers none: then the
        way up is not known and taken for none, and the least of what these say is the best.
        """
        way_ns, offset_ns = _UNANSWERED_NS, now_ns - sent_ns
        if echo_ns:
            way_ns, offset_ns = now_ns - echo_ns, (echo_ns + now_ns) // 2 - sent_ns
        better = way_ns < self.way_ns or (way_ns == self.way_ns and offset_ns < self.offset_ns)
        return ClockOffset(offset_ns, way_ns) if better else self

    def to_launcher_ns(self, node_ns: int) -> int:
        """A time by the node's clock, by the launcher's."""
        return node_ns + self.offset_ns
