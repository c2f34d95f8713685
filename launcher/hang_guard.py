"""Looks after a running job: where it makes no progress, finds out where its ranks are, and tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from dslaunch.launcher import wire
from dslaunch.launcher.census import Kind, odd_ones
from dslaunch.launcher.census_taker import CensusTaker
from dslaunch.launcher.hang import HangWatch, Suspicion
from dslaunch.launcher.hang_limit import HangLimit
from dslaunch.launcher.stacks import Frame, main_thread
from dslaunch.launcher.supervise import FromAgent, Input
from dslaunch.launcher.verdict import JobHung
from dslaunch.launcher.whereabouts import Whereabouts

_LOOK_S = 0.25
_NUM_BUSY_LOOKS = 4
"""Ranks that use CPU and write nothing hang where so many looks find every stack as it was."""
_BETWEEN_BUSY_LOOKS_S = 1.0
_BETWEEN_IDLE_LOOKS_S = 0.3
"""Idle ranks are looked at twice: a light loop uses as little CPU as one that waits."""
_INNOCENT_WAIT_S = 5.0
"""Of several launchers of one job, the one whose ranks all wait for others speaks last."""

Found = Callable[[JobHung], None]
Keep = Callable[[Whereabouts], None]


class HangGuard:
    """Calls `found` when the job hangs, and again when it has for twice as long."""

    def __init__(
        self, limit: HangLimit, census: CensusTaker, found: Found, keep: Keep, *, is_alone: bool
    ) -> None:
        """`keep` is called first, in a thread; `is_alone` is false where others run the job's other nodes."""
        # Who gives a limit to end the job at has said how long it may be silent. What ranks use that wait for
        # a device tells nothing: they spin, and an idle one's libraries can use a tenth of a CPU.
        self._watch = HangWatch(limit.after_s, is_strict=limit.kill)
        self._census = census
        self._found = found
        self._keep = keep
        self._is_alone = is_alone

    def on_input(self, what: Input) -> None:
        # torch writes a line when it is asked for a dump: no progress of the job's.
        if not (
            self._census.is_dumping and isinstance(what, FromAgent) and isinstance(what.message, wire.Output)
        ):
            self._watch.on_input(what, time.monotonic())

    @property
    def silent_s(self) -> float:
        """How long no rank has written anything."""
        return self._watch.silent_s(time.monotonic())

    async def guard(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            suspicion = self._watch.suspicion(time.monotonic())
            if suspicion is not None:
                await self._look_into(suspicion)

    async def _look_into(self, suspicion: Suspicion) -> None:
        seen = await self._census.take()
        if not await self._is_still(seen, suspicion.idle):
            self._watch.begin_anew(time.monotonic())
            return
        if not self._is_alone and not odd_ones(seen.groups()):
            await asyncio.sleep(_INNOCENT_WAIT_S)
        if self._watch.suspicion(time.monotonic()) is None:
            return  # it has gone on meanwhile
        seen = await self._census.take(with_flight=True, of_last=True)
        ranks = tuple(rank for group in odd_ones(seen.groups()) for rank in group.ranks)
        places = (*seen.lines(), *await asyncio.to_thread(seen.flight_lines))
        await asyncio.to_thread(self._keep, seen)
        self._found(JobHung(round(suspicion.silent_s), suspicion.what, ranks, places))
        self._watch.after_s *= 2

    async def _is_still(self, seen: Whereabouts, idle: Sequence[int]) -> bool:
        """Whether the idle ranks, or without any all, are where they were at each of several looks.

        Where some rank cannot run at all, that is enough. Where silence is enough to suspect a job, half of
        its busy ranks are: the others may wait for one in a loop.
        """
        if any(group.kind is Kind.UNABLE for group in seen.groups()):
            return True
        first = _positions(seen, idle)
        still = {rank for rank, frames in first.items() if idle or frames}
        num_needed = (len(first) + 1) // 2 if self._watch.is_strict and not idle else len(first)
        for _ in range(1 if idle else _NUM_BUSY_LOOKS - 1):
            await asyncio.sleep(_BETWEEN_IDLE_LOOKS_S if idle else _BETWEEN_BUSY_LOOKS_S)
            now = _positions(await self._census.take(), idle)
            still = {rank for rank in still if now.get(rank) == first[rank]}
            if len(still) < num_needed:
                return False
        return len(still) >= num_needed


def _positions(seen: Whereabouts, ranks: Sequence[int]) -> dict[int, tuple[Frame, ...]]:
    """The main threads' frames of these ranks, or of all."""
    return {stack.rank: main_thread(stack.text) for stack in seen.stacks if stack.rank in ranks or not ranks}
