"""One node's part in the job, as its launcher sees it: joined, told to stop, told how it all ended."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from dslaunch.launcher.coordination.facts import Facts
from dslaunch.launcher.coordination.protocol import (
    Begin,
    Cause,
    Ended,
    Rejected,
    Settled,
    Stop,
    Welcome,
    fitted,
    host_name,
    printable,
)


class CoordinationError(Exception):
    """The job cannot begin. `hint` is the next action for the user."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """What a launcher brings to the link.

    Attributes:
        host: what this machine calls itself.
        node_rank: its place, None where node 0 is to give it one.
        host_names: of the plan's hosts, in rank order.
        port: where node 0 listens.
        job_id: node 0's becomes everyone's.
        key: the job key; None leaves the link open to whoever reaches the port.
        start_timeout_s: until every node must have joined.
        lease_s: of silence, after which the other side counts as lost.
        hello_timeout_s: for a stranger to say who he is.
        settle_s: after a failure, for an earlier one on another node to become known.
    """

    host: str
    node_rank: int | None
    host_names: tuple[str, ...]
    facts: Facts
    master_addr: str
    port: int
    job_id: str
    key: bytes | None
    start_timeout_s: float = 120.0
    lease_s: float = 15.0
    heartbeat_s: float = 2.0
    hello_timeout_s: float = 5.0
    settle_s: float = 0.3

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", host_name(self.host))


@dataclass(frozen=True, slots=True)
class Joined:
    """Every node is there: this one's place, and the id of the job they all share."""

    node_rank: int
    job_id: str


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """How this node's part ended. `lines` name the cause of a bad end, as every pod will print them.

    `at_ns` is when, on the clock of `time.time_ns` (None: now).
    """

    exit_code: int
    lines: tuple[str, ...] = ()
    at_ns: int | None = None

    def ended(self, offset_ns: int | None) -> Ended:
        """For the wire. `offset_ns` is node 0's monotonic clock less this one's, None where not known."""
        at_ns = None
        if offset_ns is not None:
            age_ns = 0 if self.at_ns is None else max(0, time.time_ns() - self.at_ns)
            at_ns = time.monotonic_ns() - age_ns + offset_ns
        return Ended(self.exit_code, at_ns, fitted(self.lines))


@dataclass(frozen=True, slots=True)
class PeerFailed:
    """Another node's part ended badly: end the own ranks."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class PeerLost:
    """Another node is gone, or cannot be reached: end the own ranks.

    `is_cut_off`: it was node 0, or node 0 hears nobody any more. Then this node may be the one that is gone.
    """

    cause: Cause
    is_cut_off: bool


class Attendance:
    """What has become known so far; each of the three is decided once. Must be made in a running loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.joined: asyncio.Future[Joined | CoordinationError] = loop.create_future()
        self.stopped: asyncio.Future[PeerFailed | PeerLost] = loop.create_future()
        self.settled: asyncio.Future[Settled] = loop.create_future()
        self._job_id = ""

    def take(self, message: Welcome | Rejected | Begin | Stop | Settled, *, is_alone: bool = False) -> None:
        """What node 0 says; `is_alone` when it hears nobody else any more."""
        match message:
            case Welcome(job_id):
                self._job_id = job_id
            case Rejected(what, hint):
                self.refuse(CoordinationError(printable(what), printable(hint)))
            case Begin(node_rank):
                if not self.joined.done():
                    self.joined.set_result(Joined(node_rank, self._job_id))
            case Stop(cause):
                if not self.stopped.done():
                    is_cut_off = is_alone or cause.node_rank == 0
                    self.stopped.set_result(PeerLost(cause, is_cut_off) if cause.lost else PeerFailed(cause))
            case Settled():
                if not self.settled.done():
                    self.settled.set_result(message)

    def refuse(self, error: CoordinationError) -> None:
        if not self.joined.done():
            self.joined.set_result(error)

    async def join(self) -> Joined:
        """Raises CoordinationError."""
        outcome = await asyncio.shield(self.joined)
        if isinstance(outcome, CoordinationError):
            raise outcome
        return outcome
