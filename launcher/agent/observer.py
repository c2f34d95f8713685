"""What the agent looks at while its ranks run, and what waits until it has looked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dslaunch.launcher.agent import device_use, hook
from dslaunch.launcher.agent.census import POLL_S, Census
from dslaunch.launcher.agent.process import RankProcess
from dslaunch.launcher.agent.vitals import vitals
from dslaunch.launcher.wire import CensusEnd, DeviceUse, Message, Vitals

VITALS_S = 1.0


class _Wait(NamedTuple):
    census: Census
    then: tuple[Callable[[], None], ...]


class Observer:
    """Takes one census at a time: who asks while one is under way gets that one."""

    def __init__(self, node_id: str, ranks: Mapping[int, RankProcess], slots: Sequence[int]) -> None:
        """`ranks` are those of the node, by pid, also those that are started later; `slots` their devices.

        Where no folder can be made, ranks cannot be asked, and only the kernel is.
        """
        self._ranks = ranks
        self._slots = slots
        self._devices: device_use.DeviceUse | None = None
        self._vitals_at = time.monotonic() + VITALS_S
        try:
            self.folder: hook.HookFolder | None = hook.HookFolder(node_id)
        except OSError:
            self.folder = None
        self._waiting: _Wait | None = None

    def ask(self, timeout_s: float, then: Callable[[], None]) -> None:
        """Begin a census; `then` is called after its end."""
        if self._waiting is not None:
            self._waiting = self._waiting._replace(then=(*self._waiting.then, then))
            return
        self._waiting = _Wait(Census(self._ranks.values(), self.folder, timeout_s), (then,))

    @property
    def next_look_at(self) -> float:
        """On the monotonic clock."""
        return self._vitals_at if self._waiting is None else time.monotonic() + POLL_S

    def look(self, tell: Callable[[Message], None]) -> None:
        """Tell every second what ranks and devices use, and where they are when all is known that can be."""
        now = time.monotonic()
        if now >= self._vitals_at:
            self._vitals_at = now + VITALS_S
            tell(Vitals(int(now * 1000), vitals(self._ranks.values())))
            if self._devices is None:  # not before ranks are forked: it has a thread
                self._devices = device_use.DeviceUse(self._slots)
            elif used := self._devices.take():
                tell(DeviceUse(used))
        if self._waiting is not None and self._waiting.census.is_done():
            self._tell(self._waiting, tell)

    def _tell(self, waiting: _Wait, tell: Callable[[Message], None]) -> None:
        self._waiting = None
        for stack in waiting.census.stacks():
            tell(stack)
        tell(CensusEnd())
        for act in waiting.then:
            act()

    def close(self, tell: Callable[[Message], None]) -> None:
        """Tell what is known, and leave nothing."""
        if self._waiting is not None:
            self._tell(self._waiting, tell)
        if self.folder is not None:
            hook.remove(self.folder.path)
