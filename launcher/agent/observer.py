"""What the agent looks at while its ranks run, and what waits until it has looked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dslaunch.launcher.agent import device_use, hook
from dslaunch.launcher.agent.census import POLL_S, Census
from dslaunch.launcher.agent.flight import FlightDumps
from dslaunch.launcher.agent.kernel_state import kernel_state
from dslaunch.launcher.agent.process import RankProcess
from dslaunch.launcher.agent.vitals import VitalSigns
from dslaunch.launcher.wire import CensusEnd, DeviceUse, Message, Vitals

VITALS_S = 1.0


class _Wait(NamedTuple):
    census: Census
    deadline: float
    with_flight: bool
    then: tuple[Callable[[], None], ...]


class Observer:
    """Takes one census at a time: who asks while one is under way gets that one."""

    def __init__(self, node_id: str, ranks: Mapping[int, RankProcess], slots: Sequence[int]) -> None:
        """`ranks` are those of the node, by pid, also those that are started later; `slots` their devices.

        Where no folder can be made, ranks cannot be asked, and only the kernel is.
        """
        self._ranks = ranks
        self._vital_signs = VitalSigns(ranks)
        self._slots = slots
        self._devices: device_use.DeviceUse | None = None
        self._vitals_at = time.monotonic() + VITALS_S
        try:
            self.folder: hook.HookFolder | None = hook.HookFolder(node_id)
        except OSError:
            self.folder = None
        self._dumps = None if self.folder is None else FlightDumps(self.folder.path)
        self._waiting: _Wait | None = None

    def ask(self, timeout_s: float, then: Callable[[], None], *, with_flight: bool) -> None:
        """Begin a census; `then` is called after its end."""
        if self._waiting is not None:
            self._waiting = self._waiting._replace(then=(*self._waiting.then, then))
            return
        if with_flight and self._dumps is not None:
            self._dumps.ask([rank.rank for rank in self._ranks.values() if kernel_state(rank.pid).can_run])
        census = Census(self._ranks.values(), self.folder)
        self._waiting = _Wait(census, time.monotonic() + timeout_s, with_flight, (then,))

    @property
    def next_look_at(self) -> float:
        """On the monotonic clock."""
        return self._vitals_at if self._waiting is None else time.monotonic() + POLL_S

    def look(self, tell: Callable[[Message], None]) -> None:
        """Tell every second what ranks and devices use, and where they are when all is known that can be."""
        now = time.monotonic()
        if now >= self._vitals_at:
            self._vitals_at = now + VITALS_S
            tell(Vitals(int(now * 1000), self._vital_signs.sample()))
            if self._devices is None:  # not before ranks are forked: it has a thread
                self._devices = device_use.DeviceUse(self._slots)
            elif used := self._devices.take():
                tell(DeviceUse(used))
        if self._waiting is not None and (now >= self._waiting.deadline or self._is_done(self._waiting, now)):
            self._tell(self._waiting, tell)

    def _is_done(self, waiting: _Wait, now: float) -> bool:
        is_flight_done = not waiting.with_flight or self._dumps is None or self._dumps.have_answered(now)
        return waiting.census.is_done(now) and is_flight_done

    def _tell(self, waiting: _Wait, tell: Callable[[Message], None]) -> None:
        self._waiting = None
        for stack in waiting.census.stacks():
            tell(stack)
        self._tell_flight(tell)
        tell(CensusEnd())
        for act in waiting.then:
            act()

    def _tell_flight(self, tell: Callable[[Message], None]) -> None:
        for piece in self._dumps.new_ones() if self._dumps is not None else ():
            tell(piece)

    def close(self, tell: Callable[[Message], None]) -> None:
        """Tell what is known, and leave nothing. Ranks that gave a collective up have written dumps."""
        if self._waiting is not None:
            self._tell(self._waiting, tell)
        self._tell_flight(tell)
        if self.folder is not None:
            hook.remove(self.folder.path)
