"""Whether a job that ended badly is started again, and on which hosts. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dslaunch.hostfile import Host
from dslaunch.launcher.verdict import (
    Cause,
    Interrupted,
    JobHung,
    LaunchFailed,
    NodeLost,
    PeerEnded,
    Preempted,
    RankFailed,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How often, and on how few hosts at least; `min_nodes` is None where every host is needed."""

    max_restarts: int
    min_nodes: int | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a job: its number from 0, the hosts it runs on, and those that wait to replace them.

    `last` is what ended the try before, and `progress` the newest checkpoint that was known then.
    """

    number: int
    hosts: tuple[Host, ...]
    spares: tuple[Host, ...] = ()
    last: Cause | None = None
    progress: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Why there is no further try; "" where nobody asked for one."""

    reason: str


def first_attempt(hosts: tuple[Host, ...], num_spares: int) -> Attempt:
    """The last `num_spares` hosts wait. There are more hosts than spares."""
    num_used = len(hosts) - num_spares
    return Attempt(0, hosts[:num_used], hosts[num_used:])


def next_attempt(
    limits: Limits, attempt: Attempt, cause: Cause, progress: str, held: Collection[int] = ()
) -> Attempt | GiveUp:
    """After a bad end. `progress` is the newest checkpoint that the job has told of, "" for none.

    `held` are nodes where processes of the job may be left, so that nobody knows whether devices are free.
    """
    if limits.max_restarts == 0 or isinstance(cause, Interrupted | PeerEnded):
        return GiveUp("")
    if attempt.number >= limits.max_restarts:
        return GiveUp(f"{attempt.number} restarts did not help (--max_restarts {limits.max_restarts})")
    if attempt.last is not None and _same(cause, attempt.last) and progress == attempt.progress:
        return GiveUp("the same failure came back, and no checkpoint was saved in between")
    hosts = _surviving_hosts(limits, attempt, cause, held)
    if isinstance(hosts, GiveUp):
        return hosts
    left = tuple(host for host in attempt.spares if host not in hosts)
    return Attempt(attempt.number + 1, hosts, left, cause, progress)


def _surviving_hosts(
    limits: Limits, attempt: Attempt, cause: Cause, held: Collection[int]
) -> tuple[Host, ...] | GiveUp:
    """A host that cannot be used is replaced by a spare, or left out where that is allowed."""
    unusable = {
        node_rank: f"processes on {attempt.hosts[node_rank].name} cannot be ended" for node_rank in held
    }
    gone: int | None = None
    match cause:
        case LaunchFailed(None):
            return GiveUp("")
        case LaunchFailed(int(node_rank)):
            unusable[node_rank] = f"{attempt.hosts[node_rank].name} cannot be used"
        case NodeLost(node_rank) | Preempted(node_rank):
            gone = node_rank
        case _:
            pass
    spares = iter(attempt.spares)
    hosts = [
        next(spares, None) if node_rank in unusable or node_rank == gone else host
        for node_rank, host in enumerate(attempt.hosts)
    ]
    left = tuple(host for host in hosts if host is not None)
    if len(left) == len(hosts) or (limits.min_nodes is not None and len(left) >= limits.min_nodes):
        return left
    if unusable:
        return GiveUp(f"{next(iter(unusable.values()))}, and there is no spare host")
    return attempt.hosts  # the lost one may come back


def _same(first: Cause, second: Cause) -> bool:
    """Whether two ends are the same failure: of the same rank in the same way, or of the same node."""
    match first, second:
        case RankFailed(a), RankFailed(b):
            return (a.rank, a.returncode) == (b.rank, b.returncode)
        case JobHung(ranks=a), JobHung(ranks=b):
            return a == b
        case (NodeLost(a), NodeLost(b)) | (Preempted(a), Preempted(b)) | (LaunchFailed(a), LaunchFailed(b)):
            return a == b
        case _:
            return False
