"""The end of the link on every node but node 0: calls until someone answers, then stays on the line."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from dslaunch.launcher.coordination.addresses import connect, explained
from dslaunch.launcher.coordination.attendance import (
    Attendance,
    CoordinationError,
    Joined,
    LinkSettings,
    NodeEnd,
    PeerFailed,
    PeerLost,
)
from dslaunch.launcher.coordination.call import Call, CallListener
from dslaunch.launcher.coordination.protocol import (
    Begin,
    Cause,
    Goodbye,
    Rejected,
    Settled,
    Stop,
    Welcome,
    fitted,
)
from dslaunch.launcher.errors import EXIT_NODE_LOST

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_LINGER_S = 1.0
_ANSWER_S = 5.0
"""For node 0 to settle what this node reported."""


class OwnEchoError(Exception):
    """The call led back to the own launcher: it is the one that master_addr means."""


class Member:
    """The launcher of another node than 0. `join`, and `close` in any case."""

    def __init__(
        self, settings: LinkSettings, log: Callable[[str], None], *, own_instance: str | None = None
    ) -> None:
        self._settings = settings
        self._log = log
        self._own_instance = own_instance
        self._attendance = Attendance()
        self._call: Call | None = None
        self._hung_up = asyncio.get_running_loop().create_future()
        self._echoed = False
        self._master_host = settings.master_addr
        self._own_failure: Cause | None = None
        self._failed_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.was_refused = False

    # -- joining

    async def join(self) -> Joined:
        """Call until node 0 answers, then wait for all nodes. Raises CoordinationError or OwnEchoError."""
        settings = self._settings
        deadline_s = time.monotonic() + settings.start_timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            reason = await self._try()
            if self._echoed:
                raise OwnEchoError
            if self._attendance.joined.done():
                return await self._attendance.join()
            if time.monotonic() + pause_s > deadline_s:
                raise CoordinationError(
                    f"node 0 does not answer at {settings.master_addr} port {settings.port} "
                    f"within {settings.start_timeout_s:g} s: {reason}",
                    "see whether dslaunch runs there as node 0, or raise --start_timeout",
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _try(self) -> str:
        """One call, until it is decided or over; says why it is over."""
        self._hung_up = asyncio.get_running_loop().create_future()
        listener = CallListener(self._said, self._refused, self._echo, self._closed, self._log)
        try:
            self._call = await connect(
                self._settings.master_addr,
                self._settings.port,
                lambda: Call(self._settings, listener, self._own_instance),
            )
        except OSError as error:
            return explained(error)
        await asyncio.wait([self._hung_up, self._attendance.joined], return_when=asyncio.FIRST_COMPLETED)
        return self._hung_up.result() if self._hung_up.done() else ""

    def _said(self, message: Welcome | Begin | Stop | Settled) -> None:
        if isinstance(message, Welcome):
            self._master_host = message.host
        self._attendance.take(message)

    def _refused(self, refusal: Rejected) -> None:
        self.was_refused = True
        self._attendance.take(refusal)

    def _echo(self) -> None:
        self._echoed = True

    def _closed(self, reason: str) -> None:
        if not self._hung_up.done():
            self._hung_up.set_result(reason)
        if self._has_joined and not self._attendance.settled.done():
            self._lose(reason)

    # -- while the job runs

    async def stopped(self) -> PeerFailed | PeerLost:
        """See `Link.stopped`."""
        return await asyncio.shield(self._attendance.stopped)

    def report(self, end: NodeEnd) -> None:
        """See `Link.report`."""
        if self._call is not None:
            self._call.tell(end.ended(self._call.clock.offset_ns))
        if end.exit_code != 0 and self._own_failure is None:
            self._own_failure = Cause(
                self._node_rank, self._settings.host, end.exit_code, lost=False, lines=fitted(end.lines)
            )
            self._failed_at_s = time.monotonic()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._settings.settle_s + _ANSWER_S, self._settle_alone)

    async def verdict(self) -> Settled:
        """See `Link.verdict`."""
        return await asyncio.shield(self._attendance.settled)

    @property
    def _has_joined(self) -> bool:
        return self._attendance.joined.done() and isinstance(self._attendance.joined.result(), Joined)

    @property
    def _node_rank(self) -> int:
        outcome = self._attendance.joined.result()
        assert isinstance(outcome, Joined)
        return outcome.node_rank

    def _lose(self, reason: str) -> None:
        """Node 0 is gone. A failure here shortly before was probably due to it, an earlier one was not."""
        age_s = time.monotonic() - self._failed_at_s
        if self._own_failure is not None and age_s > self._settings.settle_s:
            self._settle_alone()
            return
        line = f"error: host {self._master_host} (node rank 0) was lost: {reason}"
        cause = Cause(0, self._master_host, EXIT_NODE_LOST, lost=True, lines=(line,))
        self._attendance.take(Stop(cause))
        self._attendance.take(Settled(cause))

    def _settle_alone(self) -> None:
        self._attendance.take(Settled(self._own_failure))

    # -- leaving

    async def close(self) -> None:
        """Leave: a job that is not over counts this node as lost. What was said arrives first."""
        if self._timer is not None:
            self._timer.cancel()
        if self._call is None:
            return
        if not self._attendance.settled.done() and not self.was_refused:
            self._call.tell(Goodbye("its launcher ended early"))
        self._call.finish(_LINGER_S)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._call.gone), _LINGER_S + 1)
