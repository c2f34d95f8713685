"""How a job ended: the values, and the exit code each becomes."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from dslaunch.launcher.errors import EXIT_HUNG, EXIT_LAUNCH_FAILED, EXIT_NODE_LOST, EXIT_PREEMPTED
from dslaunch.launcher.node_plan import orphan_grace_s


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended. `returncode` is negative for a signal, None where its node was lost.

    `time_ns` is by the launcher's clock; `note` is what the host knows about it, "" for nothing.
    """

    node_rank: int
    rank: int
    returncode: int | None
    time_ns: int
    note: str


@dataclass(frozen=True, slots=True)
class RankFailed:
    """A rank ended by itself, other than with 0."""

    end: RankEnd


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node's agent, or the way to it, went away while its ranks ran."""

    node_rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Preempted:
    """Someone on its host told a node's agent to end: a batch system, or a machine that is taken away."""

    node_rank: int
    signal: int


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """A node could not be started. `node_rank` is None where the job as a whole could not."""

    node_rank: int | None
    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The launcher was told to end by a signal. Also an Input: the signal's arrival."""

    signal: int


@dataclass(frozen=True, slots=True)
class PeerEnded:
    """Another node of a job started by hand ended badly, or was lost. Also an Input: the news of it.

    `lines` name the cause as every node prints it. `is_cut_off` where this node may be the one that is lost
    to the others.
    """

    exit_code: int
    lines: tuple[str, ...]
    is_cut_off: bool = False


@dataclass(frozen=True, slots=True)
class JobHung:
    """No rank made progress for `after_s`. Also an Input: the news of it.

    `ranks` are those that the others seem to wait for; `places` tell where all of them are.
    """

    after_s: float
    what: str
    ranks: tuple[int, ...]
    places: tuple[str, ...]


Cause = RankFailed | NodeLost | Preempted | LaunchFailed | Interrupted | JobHung | PeerEnded


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of the job. No cause means that every rank ended with 0.

    `collateral` are the ranks that ended otherwise than with 0 after the cause; `silent_nodes` those whose
    agents did not say goodbye in time; `stuck_nodes` those with processes that nothing could end.
    """

    cause: Cause | None
    collateral: tuple[RankEnd, ...]
    silent_nodes: tuple[int, ...]
    stuck_nodes: tuple[int, ...] = ()

    @property
    def exit_code(self) -> int:
        """Of the cause; without one, 0 where every agent said goodbye."""
        if self.cause is None:
            return EXIT_NODE_LOST if self.silent_nodes else 0
        return exit_code(self.cause)


def grace_after(cause: Cause, grace_s: float, lease_s: float) -> float:
    """What ranks get to heed SIGTERM: the user's grace, or what a host that is cut off can afford."""
    if isinstance(cause, PeerEnded) and cause.is_cut_off:
        return min(grace_s, orphan_grace_s(lease_s))
    return grace_s


def exit_code(cause: Cause) -> int:
    """The rank's own code, 128 + n for a signal, or a code of errors.py."""
    match cause:
        case RankFailed(end):
            assert end.returncode is not None
            return end.returncode if end.returncode >= 0 else 128 - end.returncode
        case NodeLost():
            return EXIT_NODE_LOST
        case Preempted():
            return EXIT_PREEMPTED
        case LaunchFailed():
            return EXIT_LAUNCH_FAILED
        case Interrupted(number):
            return 128 + number
        case JobHung():
            return EXIT_HUNG
        case PeerEnded(code):
            return code


def how_it_ended(returncode: int) -> str:
    """`exited with code 3`, `was killed by SIGKILL`."""
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was killed by {name}"
