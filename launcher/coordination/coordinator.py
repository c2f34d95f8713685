"""Node 0's end of the link: listens, keeps the room, and is itself the first one in it."""

from __future__ import annotations

import asyncio
import errno
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from dslaunch.launcher.coordination.addresses import explained, is_own_literal
from dslaunch.launcher.coordination.attendance import (
    Attendance,
    CoordinationError,
    Joined,
    LinkSettings,
    NodeEnd,
    PeerFailed,
    PeerLost,
)
from dslaunch.launcher.coordination.member import Member, OwnEchoError
from dslaunch.launcher.coordination.membership import step
from dslaunch.launcher.coordination.protocol import (
    PROTOCOL,
    Begin,
    Hello,
    Rejected,
    Settled,
    Stop,
    Welcome,
)
from dslaunch.launcher.coordination.reception import Listener, Reception
from dslaunch.launcher.coordination.room import (
    OWN,
    Arrived,
    Disputed,
    HangUp,
    Heard,
    Input,
    Left,
    Note,
    Room,
    Rules,
    Send,
    Tick,
)

_BACKLOG = 512


class PortInUseError(CoordinationError):
    """Another process listens at the coordination port of this machine."""


class Coordinator:
    """The launcher of node 0. `open`, then `join`; `close` in any case."""

    def __init__(self, settings: LinkSettings, log: Callable[[str], None]) -> None:
        self._settings = settings
        self._log = log
        self._attendance = Attendance()
        self._reception = Reception(
            settings,
            Listener(
                on_arrived=lambda peer, hello: self._feed(Arrived(peer, hello, time.monotonic_ns())),
                on_heard=lambda peer, message: self._feed(Heard(peer, message, time.monotonic_ns())),
                on_left=lambda peer, reason: self._feed(Left(peer, reason, time.monotonic_ns())),
                log=log,
            ),
        )
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self._room = self._empty_room()

    def _empty_room(self) -> Room:
        settings = self._settings
        rules = Rules(
            job_id=settings.job_id,
            host_names=settings.host_names,
            start_timeout_ns=_ns(settings.start_timeout_s),
            lease_ns=_ns(settings.lease_s),
            settle_ns=_ns(settings.settle_s),
        )
        return Room(rules, time.monotonic_ns())

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def open(self) -> None:
        """Listen. Raises PortInUseError, or CoordinationError."""
        address, port = self._settings.master_addr, self._settings.port
        try:
            if is_own_literal(address):
                self._server = await self._listen(address)
            else:  # a name, or an address that is translated on the way here: how others come is not known
                self._server = await self._listen(None)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"the coordination port {port} is in use",
                    "choose another with --coordination_port on every node, or end who holds it",
                ) from error
            raise CoordinationError(
                f"cannot listen at the coordination port {port}: {explained(error)}",
                "choose another with --coordination_port on every node",
            ) from error
        self._feed(Arrived(OWN, self._hello(), time.monotonic_ns()))
        if len(self._settings.host_names) > 1:
            self._probe = asyncio.create_task(self._find_rival())

    async def _listen(self, address: str | None) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        try:
            return await loop.create_server(
                self._reception.guest, address, self._settings.port, backlog=_BACKLOG
            )
        except OSError as error:
            if address is not None or error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise
            return await self._listen("0.0.0.0")  # no IPv6 here

    def _hello(self) -> Hello:
        return Hello(PROTOCOL, secrets.token_hex(16), self._settings.host, 0, self._settings.facts)

    async def _find_rival(self) -> None:
        """See where master_addr leads: to this launcher, or to another one that is node 0 as well."""
        settings = replace(self._settings, node_rank=0, port=self.port)
        member = Member(settings, self._log, own_instance=self._reception.instance)
        try:
            await member.join()
        except OwnEchoError:
            pass
        except CoordinationError as error:
            if member.was_refused:
                self._feed(Disputed(Rejected(error.what, error.hint), time.monotonic_ns()))
            # else master_addr may not lead back from here, and the others get through all the same
        finally:
            await member.close()

    async def join(self) -> Joined:
        """Wait for all nodes. Raises CoordinationError."""
        try:
            return await self._attendance.join()
        finally:
            await self._end_probe()

    async def stopped(self) -> PeerFailed | PeerLost:
        """See `Link.stopped`."""
        return await asyncio.shield(self._attendance.stopped)

    def report(self, end: NodeEnd) -> None:
        """See `Link.report`."""
        self._feed(Heard(OWN, end.ended(0), time.monotonic_ns()))

    async def verdict(self) -> Settled:
        """See `Link.verdict`."""
        return await asyncio.shield(self._attendance.settled)

    async def close(self) -> None:
        """Leave: a job that is not over ends with it. What was said to the others arrives first."""
        await self._end_probe()
        if OWN in self._room.nodes:
            self._feed(Left(OWN, "its launcher ended early", time.monotonic_ns()))
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        await self._reception.close()
        if self._server is not None:
            await self._server.wait_closed()

    async def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)

    def _feed(self, what: Input) -> None:
        self._room, outputs = step(self._room, what)
        is_alone = isinstance(what, Tick) and self._room.is_silent(what.at_ns)
        for output in outputs:
            match output:
                case Send(peer, message) if peer != OWN:
                    self._reception.send(peer, message)
                case Send(_, Welcome() | Rejected() | Begin() | Stop() | Settled() as message):
                    self._attendance.take(message, is_alone=is_alone)
                case HangUp(peer):
                    self._reception.hang_up(peer)
                case Note(text):
                    self._log(text)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ns = self._room.due_ns
        if due_ns is not None:
            delay_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._feed(Tick(time.monotonic_ns()))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
