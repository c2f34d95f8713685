"""The coordination link as `run.py` uses it: join, be told, report, leave.

async with coordination(settings, log) as link:
    joined = await link.join()
    ...                                   # start the own node's ranks
    why = await link.stopped()            # in a task: another node's failure, for `supervise.step`
    link.report(NodeEnd(exit_code, lines, at_ns))
    settled = await link.verdict()        # the same exit code and lines on every node
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from dslaunch.launcher.coordination.addresses import is_own
from dslaunch.launcher.coordination.attendance import (
    CoordinationError,
    Joined,
    LinkSettings,
    NodeEnd,
    PeerFailed,
    PeerLost,
)
from dslaunch.launcher.coordination.coordinator import Coordinator, PortInUseError
from dslaunch.launcher.coordination.member import Member
from dslaunch.launcher.coordination.protocol import Settled

__all__ = [
    "CoordinationError",
    "Joined",
    "Link",
    "LinkSettings",
    "NodeEnd",
    "PeerFailed",
    "PeerLost",
    "Settled",
    "coordination",
]


class Link(Protocol):
    """Either end, once it is open."""

    async def join(self) -> Joined:
        """Returns when every node is there. Raises CoordinationError."""
        ...

    async def stopped(self) -> PeerFailed | PeerLost:
        """Returns when another node failed or is lost, and the own ranks must end; else never."""
        ...

    def report(self, end: NodeEnd) -> None:
        """After joining: a bad end at once, a good one when the own ranks are gone.

        The first bad end counts. It may come after a good one: the launcher is interrupted while it waits.
        """
        ...

    async def verdict(self) -> Settled:
        """After joining: returns how the job ended, at once after the first failure or the last good end.

        It is the same on every node, and names the earliest failure.
        """
        ...


@asynccontextmanager
async def coordination(settings: LinkSettings, log: Callable[[str], None]) -> AsyncIterator[Link]:
    """The link of this node; leaving the block closes it. `log` takes lines worth telling.

    A node without a node_rank is node 0 where master_addr is its own, unless another launcher of this
    machine listens already. Raises CoordinationError when node 0 cannot listen.
    """
    link = await _opened(settings, log)
    try:
        yield link
    finally:
        await link.close()


async def _opened(settings: LinkSettings, log: Callable[[str], None]) -> Coordinator | Member:
    if settings.node_rank == 0:
        return await _listening(settings, log)
    if settings.node_rank is None and await is_own(settings.master_addr):
        try:
            return await _listening(settings, log)
        except PortInUseError:
            pass  # the launcher that came first is node 0
    return Member(settings, log)


async def _listening(settings: LinkSettings, log: Callable[[str], None]) -> Coordinator:
    coordinator = Coordinator(settings, log)
    try:
        await coordinator.open()
    except BaseException:
        await coordinator.close()
        raise
    return coordinator
