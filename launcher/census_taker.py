"""Ask all agents at once where their ranks are, and wait for them no longer than is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dslaunch.launcher import wire
from dslaunch.launcher.plan import LaunchPlan
from dslaunch.launcher.supervise import Input
from dslaunch.launcher.whereabouts import Whereabouts

_TIMEOUT_S = 1.0
"""For the ranks of one host."""
_FLIGHT_TIMEOUT_S = 10.0
"""torch looks once a second whether it should write a dump, and then took two seconds and more on a GPU."""
_WAY_S = 0.75
"""More for all hosts: one that is frozen or cut off does not answer at all."""
_POLL_S = 0.02


class CensusTaker:
    """One census at a time; who asks meanwhile waits for the next."""

    def __init__(self, plan: LaunchPlan, send: Callable[[wire.Down], None]) -> None:
        self._send = send
        self._seen = Whereabouts(plan)
        self._taking = asyncio.Lock()
        self.is_dumping = False
        """Whether ranks write dumps of their flight recorders now."""

    def on_input(self, what: Input) -> None:
        self._seen.on_input(what)

    async def take(self, *, with_flight: bool = False, of_last: bool = False) -> Whereabouts:
        """What is known when all have answered, or when the time is up; it changes with the next census.

        With `of_last` nobody waits for those that have not answered the last one.
        """
        timeout_s = _FLIGHT_TIMEOUT_S if with_flight else _TIMEOUT_S
        async with self._taking:
            awaited = self._seen.answered if of_last else self._seen.nodes
            self._seen.ask_again()
            self.is_dumping = with_flight
            self._send(wire.Census(timeout_s, with_flight))
            loop = asyncio.get_running_loop()
            end = loop.time() + timeout_s + _WAY_S
            try:
                while not self._seen.has_all(awaited) and loop.time() < end:
                    await asyncio.sleep(_POLL_S)
            finally:
                self.is_dumping = False
            return self._seen
