"""The room that nodes come into, as values: who is there, what can happen, what can be done. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from dslaunch.launcher.coordination.protocol import Cause, Down, Ended, Goodbye, Hello, Ping, Rejected

OWN = 0
"""The peer that is node 0 itself. It never falls silent."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A peer said who it is, and proved it where there is a job key. Comes first, once for each peer."""

    peer: int
    hello: Hello
    at_ns: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A peer that has arrived said something."""

    peer: int
    message: Ended | Ping | Goodbye
    at_ns: int


@dataclass(frozen=True, slots=True)
class Left:
    """The connection of a peer that has arrived is gone; for OWN, the launcher ends."""

    peer: int
    reason: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: due at `Room.due_ns`, harmless at any other time."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Disputed:
    """Another launcher, the one that master_addr leads to, takes itself for node 0, and refused this one."""

    refusal: Rejected
    at_ns: int


Input = Arrived | Heard | Left | Tick | Disputed


@dataclass(frozen=True, slots=True)
class Send:
    """Tell a peer."""

    peer: int
    message: Down


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close a peer's connection, once what was sent is out; nothing more is heard from it."""

    peer: int


@dataclass(frozen=True, slots=True)
class Note:
    """Something for the log."""

    text: str


Output = Send | HangUp | Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What does not change. `host_names` are those of the plan by node rank; times in ns."""

    job_id: str
    host_names: tuple[str, ...]
    start_timeout_ns: int
    lease_ns: int
    settle_ns: int


class Phase(Enum):
    """How far the job is."""

    JOINING = auto()
    """Nodes are awaited. Where it starts."""
    RUNNING = auto()
    """All are there: moved into by the last Arrived."""
    STOPPING = auto()
    """One has failed: moved into by its end. For a moment an earlier failure may still become known."""
    OVER = auto()
    """Everyone was told how it ended."""


@dataclass(frozen=True, slots=True)
class Node:
    """A peer in the room. `cause` is its bad end, `is_done` says that it has ended at all."""

    hello: Hello
    node_rank: int | None
    heard_ns: int
    is_done: bool = False
    cause: Cause | None = None
    failed_ns: int = 0
    is_here: bool = True

    @property
    def host(self) -> str:
        return self.hello.host


@dataclass(frozen=True, slots=True)
class Room:
    """All that is known, by peer. `settle_by_ns` stands while STOPPING, `refusal` when no job could begin."""

    rules: Rules
    started_ns: int
    nodes: Mapping[int, Node] = field(default_factory=dict)
    phase: Phase = Phase.JOINING
    settle_by_ns: int = 0
    refusal: Rejected | None = None

    @property
    def due_ns(self) -> int | None:
        """When the next Tick is needed; None: never."""
        leases = [
            node.heard_ns + self.rules.lease_ns
            for peer, node in self.nodes.items()
            if peer != OWN and node.is_here
        ]
        match self.phase:
            case Phase.JOINING:
                return min([*leases, self.started_ns + self.rules.start_timeout_ns])
            case Phase.RUNNING:
                return min(leases, default=None)
            case Phase.STOPPING:
                return min([*leases, self.settle_by_ns])
            case Phase.OVER:
                return None

    def is_silent(self, at_ns: int) -> bool:
        """Whether nobody else was heard for half a lease, though it may not be over for all of them."""
        since_ns = at_ns - self.rules.lease_ns // 2
        return all(node.heard_ns <= since_ns for peer, node in self.nodes.items() if peer != OWN)


def assigned(nodes: Mapping[int, Node]) -> Mapping[int, int]:
    """A node rank for each peer: its own where it has one; the rest are counted up by host name.

    Numbers in names count as numbers: worker-2 comes before worker-10. Peers of one name keep the order in
    which they came.
    """
    taken = {node.node_rank for node in nodes.values()}
    free = iter(rank for rank in range(len(nodes)) if rank not in taken)
    order = sorted(nodes, key=lambda peer: (_natural(nodes[peer].host), peer))
    ranks = {}
    for peer in order:
        given = nodes[peer].node_rank
        ranks[peer] = next(free) if given is None else given
    return ranks


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
