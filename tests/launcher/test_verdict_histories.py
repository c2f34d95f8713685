"""Whole histories of failing jobs, with skewed clocks and slow ways, and whether the verdict is right.

A small world is simulated: nodes with clocks of their own, heartbeats that are answered, exits that are
stamped where they happen and arrive later, agents that vanish. What the launcher makes of it is the real
`ClockOffset` and the real `step`.
"""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass, field, replace

import pytest

from dslaunch.launcher import wire
from dslaunch.launcher.clock_offset import ClockOffset
from dslaunch.launcher.supervise import AgentClosed, Finish, FromAgent, Input, Job, Stop, step
from dslaunch.launcher.verdict import NodeLost, RankFailed, Verdict

MS = 1_000_000
READY = wire.Ready("host", 1, "3.11", ("10.0.0.1",), ("eth0",), False, 1, 2)
SECOND = 1000 * MS


@dataclass
class World:
    """Nodes with two ranks each. Times are true nanoseconds unless they are said to be by a node's clock."""

    rng: random.Random
    num_nodes: int
    skew_ns: list[int] = field(init=False)
    offsets: list[ClockOffset] = field(init=False)
    arrivals: list[tuple[int, int, Input]] = field(default_factory=list)
    """When it is heard, the order of speaking, and what."""

    def __post_init__(self) -> None:
        # clocks of hosts without NTP, years apart; the launcher is a host like any other
        self.skew_ns = [self.rng.randrange(-(10**17), 10**17) for _ in range(self.num_nodes)]
        self.offsets = [self._compared(skew) for skew in self.skew_ns]

    def _compared(self, skew_ns: int) -> ClockOffset:
        """After a few heartbeats, over ways that take 0.05 to 4 ms, and not the same there and back."""
        offset = ClockOffset()
        for _ in range(5):
            sent_ns = self.rng.randrange(10**12, 10**13)
            there, back = (self.rng.randrange(50_000, 4 * MS) for _ in range(2))
            node_ns = sent_ns + there + skew_ns
            offset = offset.heard(echo_ns=sent_ns, sent_ns=node_ns, now_ns=sent_ns + there + back)
        return offset

    @property
    def ranks(self) -> dict[int, tuple[int, ...]]:
        return {node: (2 * node, 2 * node + 1) for node in range(self.num_nodes)}

    def exits(self, rank: int, returncode: int, at_ns: int) -> None:
        node = rank // 2
        stamp = self.offsets[node].to_launcher_ns(at_ns + self.skew_ns[node])
        self._arrive(node, at_ns, wire.Exited(rank, returncode, stamp, ""))

    def _arrive(self, node: int, at_ns: int, message: wire.Up) -> None:
        """Exits of one node keep their order; those of several nodes may overtake each other."""
        heard_ns = at_ns + self.rng.randrange(50_000, 60 * MS)
        before = [when for when, _, what in self.arrivals if getattr(what, "node_rank", None) == node]
        self.arrivals.append((max([heard_ns, *before]), len(self.arrivals), FromAgent(node, message)))

    def vanishes(self, node: int, at_ns: int, noticed_ns: int) -> None:
        """The agent is last heard up to a second before it is gone."""
        heard_ns = at_ns - self.rng.randrange(1, SECOND)
        closed = AgentClosed(node, "gone", "", heard_ns)
        self.arrivals.append((noticed_ns, len(self.arrivals), closed))

    def verdict(self, lost: frozenset[int] = frozenset()) -> Verdict:
        """What the launcher says in the end. Ranks that live when it stops the job end by that."""
        job = Job(self.ranks)
        for node in range(self.num_nodes):
            job, _ = step(job, FromAgent(node, READY))
        told = {
            what.message.rank
            for _, _, what in self.arrivals
            if isinstance(what, FromAgent)
            if isinstance(what.message, wire.Exited)
        }
        stopped = False
        queue = sorted(self.arrivals, key=lambda arrival: arrival[:2])
        while queue:
            now_ns, _, what = queue.pop(0)
            job, actions = step(job, what)
            if any(isinstance(action, Stop) for action in actions) and not stopped:
                stopped = True
                self.arrivals = queue
                for node in set(range(self.num_nodes)) - lost:
                    for rank in self.ranks[node]:
                        if rank not in told:
                            self.exits(rank, -signal.SIGTERM, now_ns + self.rng.randrange(MS, 30 * MS))
                    self.arrivals.append(
                        (now_ns + 5 * SECOND, len(told) + node, AgentClosed(node, "ended", ""))
                    )
                queue = sorted(self.arrivals, key=lambda arrival: arrival[:2])
            for action in actions:
                if isinstance(action, Finish):
                    return action.verdict
        raise AssertionError("no verdict")


def a_world(rng: random.Random) -> tuple[World, list[int], int]:
    """With its ranks in some order, and the time at which something goes wrong."""
    world = World(rng, num_nodes=rng.randrange(2, 6))
    ranks = list(range(2 * world.num_nodes))
    rng.shuffle(ranks)
    return world, ranks, 10**14


def collateral(world: World, ranks: list[int], since_ns: int) -> None:
    """Some of the others fail because of it, a little later: a collective is broken off."""
    for rank in ranks[: world.rng.randrange(len(ranks) + 1)]:
        code = world.rng.choice((1, 1, -signal.SIGABRT, 134))
        world.exits(rank, code, since_ns + world.rng.randrange(8 * MS, 300 * MS))


@pytest.mark.parametrize("seed", range(100))
def test_the_rank_that_failed_first_is_named(seed: int) -> None:
    rng = random.Random(seed)
    world, ranks, at_ns = a_world(rng)
    victim = ranks.pop()
    world.exits(victim, rng.choice((1, 7, -signal.SIGSEGV, -signal.SIGKILL)), at_ns)
    if rng.random() < 0.5:  # another one, 20 ms later, on another node, for reasons of its own
        second = next(rank for rank in ranks if rank // 2 != victim // 2)
        ranks.remove(second)
        world.exits(second, 9, at_ns + 20 * MS)
    collateral(world, ranks, at_ns)
    verdict = world.verdict()
    assert isinstance(verdict.cause, RankFailed)
    assert verdict.cause.end.rank == victim
    assert {end.rank for end in verdict.collateral} == set(range(2 * world.num_nodes)) - {victim}


@pytest.mark.parametrize("seed", range(100))
def test_a_node_that_is_lost_is_named_though_others_fail_before_it_is_missed(seed: int) -> None:
    rng = random.Random(seed)
    world, ranks, at_ns = a_world(rng)
    node = ranks[0] // 2
    others = [rank for rank in ranks if rank // 2 != node]
    # killed: the connection breaks soon. Cut off, or without power: after the lease
    world.vanishes(node, at_ns, at_ns + rng.choice((MS, 40 * MS, 15 * SECOND)))
    collateral(world, others, at_ns)
    cause = world.verdict(lost=frozenset({node})).cause
    assert isinstance(cause, NodeLost)
    assert cause.node_rank == node


@pytest.mark.parametrize("seed", range(20))
def test_a_node_that_is_lost_after_a_rank_failed_is_not_the_cause(seed: int) -> None:
    rng = random.Random(seed)
    world, ranks, at_ns = a_world(rng)
    victim = ranks.pop()
    node = next(rank // 2 for rank in ranks if rank // 2 != victim // 2)
    world.exits(victim, 3, at_ns)
    world.vanishes(node, at_ns + 2 * SECOND, at_ns + 3 * SECOND)
    cause = world.verdict(lost=frozenset({node})).cause
    assert isinstance(cause, RankFailed)
    assert cause.end.rank == victim


def test_a_loss_of_our_own_making_is_never_the_cause() -> None:
    world = World(random.Random(0), 2)
    world.exits(0, 3, 10**14)
    job = Job(world.ranks)
    for what in (FromAgent(0, READY), FromAgent(1, READY), *(what for _, _, what in world.arrivals)):
        job, _ = step(job, what)
    ended = replace(job, ends={**job.ends}, closed=frozenset({0}))
    _, actions = step(ended, AgentClosed(1, "the tool was ended", "", 0))
    assert isinstance(actions[-1], Finish)
    assert isinstance(actions[-1].verdict.cause, RankFailed)
