"""What happens when things end: `step(job, input)` returns the next job and the actions to carry out.

Pure. Whatever order ranks end, agents vanish and users press Ctrl-C in, there is exactly one Finish, it is
the last action, and at most one Stop.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from dslaunch.launcher import wire
from dslaunch.launcher.verdict import (
    Cause,
    Interrupted,
    JobHung,
    LaunchFailed,
    NodeLost,
    PeerEnded,
    Preempted,
    RankEnd,
    RankFailed,
    Verdict,
)

_TOLD_TO_END = (-signal.SIGTERM, 128 + signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class FromAgent:
    """A node's agent said something."""

    node_rank: int
    message: wire.Up


@dataclass(frozen=True, slots=True)
class AgentClosed:
    """The way to a node's agent has ended, well or badly. Comes once for each node.

    `heard_ns` is when the agent was last heard, by the launcher's clock; 0 where that says nothing, because
    we have broken it off.
    """

    node_rank: int
    reason: str
    hint: str
    heard_ns: int = 0


class Deadline(Enum):
    """A time that has come."""

    START = auto()
    """Every agent should have answered."""
    STOP = auto()
    """Every agent should have ended after a Stop."""


Input = FromAgent | AgentClosed | Interrupted | Deadline | JobHung | PeerEnded


@dataclass(frozen=True, slots=True)
class Begin:
    """Every agent is ready: settle where ranks meet, and send the plans."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the job everywhere: `signal` to every rank, SIGKILL after the grace."""

    cause: Cause
    signal: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Pass a signal to every rank."""

    signal: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do."""

    verdict: Verdict


Action = Begin | Stop | Signal | Finish


@dataclass(frozen=True, slots=True)
class Job:
    """What is known of a running job.

    `ranks` are the global ranks of each node; `cause` is set by the Stop that was ordered. `lost` are the
    nodes that were lost while their ranks ran, with the time that each was last heard; `preempted` is the
    first node that was told to end; `stuck` are nodes with processes that nothing can end.
    """

    ranks: Mapping[int, tuple[int, ...]]
    ready: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()
    ends: Mapping[int, RankEnd] = field(default_factory=dict)
    lost: tuple[tuple[int, NodeLost], ...] = ()
    preempted: Preempted | None = None
    stuck: frozenset[int] = frozenset()
    cause: Cause | None = None
    num_interrupts: int = 0
    finished: bool = False

    @property
    def has_begun(self) -> bool:
        return len(self.ready) == len(self.ranks)

    def missing(self, node_rank: int) -> tuple[int, ...]:
        """Ranks of a node whose end is not known."""
        return tuple(rank for rank in self.ranks[node_rank] if rank not in self.ends)


Step = tuple[Job, tuple[Action, ...]]


def step(job: Job, what: Input) -> Step:
    """The job after `what`, and what to do about it now, in order."""
    if job.finished:
        return job, ()
    match what:
        case FromAgent(node_rank, message):
            return _heard(job, node_rank, message)
        case AgentClosed(node_rank):
            return _closed(job, what)
        case Interrupted(number):
            return _interrupted(job, number)
        case JobHung() | PeerEnded():
            return _stop(job, what, signal.SIGTERM)
        case Deadline.START:
            return _start_deadline(job)
        case Deadline.STOP:
            return _finish(job)


def _heard(job: Job, node_rank: int, message: wire.Up) -> Step:
    match message:
        case wire.Ready() if node_rank not in job.ready:
            job = replace(job, ready=job.ready | {node_rank})
            return job, (Begin(),) if job.has_begun and job.cause is None else ()
        case wire.Refused(refusal, hint):
            return _stop(job, LaunchFailed(node_rank, refusal, hint), signal.SIGTERM)
        case wire.Goodbye(stuck) if stuck:
            return replace(job, stuck=job.stuck | {node_rank}), ()
        case wire.Preempted(number):
            preempted = Preempted(node_rank, number)
            job = replace(job, preempted=job.preempted or preempted)
            return _stop(job, preempted, signal.SIGTERM)
        case wire.Exited(rank, returncode, time_ns, note) if rank in job.missing(node_rank):
            end = RankEnd(node_rank, rank, returncode, time_ns, note)
            job = replace(job, ends={**job.ends, rank: end})
            return _stop(job, RankFailed(end), signal.SIGTERM) if returncode != 0 else (job, ())
        case _:
            return job, ()


def _closed(job: Job, closed: AgentClosed) -> Step:
    node_rank = closed.node_rank
    lost = job.missing(node_rank)
    job = replace(job, closed=job.closed | {node_rank})
    actions: tuple[Action, ...] = ()
    if lost:
        ends = {rank: RankEnd(node_rank, rank, None, 0, "") for rank in lost}
        job = replace(job, ends={**job.ends, **ends})
        cause: Cause = LaunchFailed(node_rank, closed.reason, closed.hint)
        if job.has_begun:
            cause = NodeLost(node_rank, closed.reason)
            job = replace(job, lost=(*job.lost, (closed.heard_ns, cause)))
        job, actions = _stop(job, cause, signal.SIGTERM)
    if len(job.closed) == len(job.ranks):
        job, last = _finish(job)
        return job, actions + last
    return job, actions


def _interrupted(job: Job, number: int) -> Step:
    if number in wire.NOTICE_SIGNALS:
        return job, (Signal(number),) if job.has_begun else ()
    job = replace(job, num_interrupts=job.num_interrupts + 1)
    if job.num_interrupts == 1 and job.cause is None:
        return _stop(job, Interrupted(number), signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
    if job.num_interrupts <= 2:
        return job, (Signal(signal.SIGKILL),)
    return _finish(job)


def _start_deadline(job: Job) -> Step:
    if job.has_begun:
        return job, ()
    late = min(set(job.ranks) - job.ready)
    return _stop(
        job,
        LaunchFailed(late, "did not answer in time", "try ssh to it by hand, or raise --start_timeout"),
        signal.SIGTERM,
    )


def _stop(job: Job, cause: Cause, number: int) -> Step:
    if job.cause is not None:
        return job, ()
    return replace(job, cause=cause), (Stop(cause, number),)


def _finish(job: Job) -> Step:
    cause = _first_cause(job)
    cause_end = cause.end if isinstance(cause, RankFailed) else None
    collateral = tuple(end for _, end in sorted(job.ends.items()) if end.returncode != 0 and end != cause_end)
    silent = tuple(sorted(set(job.ranks) - job.closed))
    return replace(job, finished=True), (
        Finish(Verdict(cause, collateral, silent, tuple(sorted(job.stuck)))),
    )


def _first_cause(job: Job) -> Cause | None:
    """What went wrong first, though something else may have been heard first.

    Whatever ended before the end that made us stop the job did not end by our stopping it. A lost node
    may have died right after it was last heard: ranks elsewhere that failed since then failed because of it.
    """
    if not isinstance(job.cause, RankFailed | NodeLost):
        return job.cause
    failed = [end for end in job.ends.values() if end.returncode not in (0, None)]
    lost = [(heard_ns, node) for heard_ns, node in job.lost if heard_ns]
    if isinstance(job.cause, NodeLost):
        lost = [(heard_ns, node) for heard_ns, node in lost if node == job.cause]
    first_end = min(failed, key=lambda end: end.time_ns, default=None)
    if first_end is not None and job.preempted is not None and first_end.returncode in _TOLD_TO_END:
        return job.preempted  # whoever told the agent has told the ranks as well, and they were quicker
    first_loss = min(lost, key=lambda loss: loss[0], default=None)
    match first_end, first_loss:
        case RankEnd(), (heard_ns, node):
            return node if heard_ns < first_end.time_ns else RankFailed(first_end)
        case RankEnd(), None if isinstance(job.cause, RankFailed):
            return RankFailed(first_end)
        case _:
            return job.cause
