"""Looks after a running job: where it makes no progress, finds out where its ranks are, and tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dslaunch.launcher.census import odd_ones
from dslaunch.launcher.census_taker import CensusTaker
from dslaunch.launcher.hang import HangWatch, Suspicion
from dslaunch.launcher.hang_limit import HangLimit
from dslaunch.launcher.stacks import Frame, main_thread
from dslaunch.launcher.supervise import Input
from dslaunch.launcher.verdict import JobHung
from dslaunch.launcher.whereabouts import Whereabouts

_LOOK_S = 0.25
_NUM_LOOKS = 4
"""Ranks that use CPU and write nothing hang where so many looks find every stack as it was."""
_BETWEEN_LOOKS_S = 1.0
_INNOCENT_WAIT_S = 5.0
"""Of several launchers of one job, the one whose ranks all wait for others speaks last."""

Found = Callable[[JobHung, Whereabouts], None]


class HangGuard:
    """Calls `found` when the job hangs, and again when it has for twice as long."""

    def __init__(self, limit: HangLimit, census: CensusTaker, found: Found, *, is_alone: bool) -> None:
        """`is_alone` is false where other launchers run the job's other nodes."""
        self._watch = HangWatch(limit.after_s)
        self._census = census
        self._found = found
        self._is_alone = is_alone

    def on_input(self, what: Input) -> None:
        self._watch.on_input(what, time.monotonic())

    async def guard(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            suspicion = self._watch.suspicion(time.monotonic())
            if suspicion is not None:
                await self._look_into(suspicion)

    async def _look_into(self, suspicion: Suspicion) -> None:
        seen = await self._census.take(with_flight=True)
        if not suspicion.idle and not await self._is_still(seen):
            self._watch.begin_anew(time.monotonic())
            return
        if not self._is_alone and not odd_ones(seen.groups()):
            await asyncio.sleep(_INNOCENT_WAIT_S)
        ranks = tuple(rank for group in odd_ones(seen.groups()) for rank in group.ranks)
        silent_s = round(suspicion.silent_s)
        self._found(JobHung(silent_s, suspicion.what, ranks, (*seen.lines(), *seen.flight_lines())), seen)
        self._watch.after_s *= 2

    async def _is_still(self, seen: Whereabouts) -> bool:
        """Whether every rank is where it was, at each of several looks."""
        first = _positions(seen)
        for _ in range(_NUM_LOOKS - 1):
            await asyncio.sleep(_BETWEEN_LOOKS_S)
            if not all(first.values()) or _positions(await self._census.take()) != first:
                return False
        return True


def _positions(seen: Whereabouts) -> dict[int, tuple[Frame, ...]]:
    return {stack.rank: main_thread(stack.text) for stack in seen.stacks}
