"""Measure the links between the hosts: a launch of one rank on each, whose program is `pairwise.py`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dslaunch.hostfile import Topology
from dslaunch.launcher import wire
from dslaunch.launcher.check import pairwise
from dslaunch.launcher.check.links import Pair, pair_from_line
from dslaunch.launcher.console import Console
from dslaunch.launcher.display import Display, Words
from dslaunch.launcher.fleet import Fleet, Post
from dslaunch.launcher.fleets import make_fleet
from dslaunch.launcher.master import assumed_master
from dslaunch.launcher.node_plan import NodePlan
from dslaunch.launcher.plan import Resolved, device_name, host_python, make_plan
from dslaunch.launcher.run import Run
from dslaunch.launcher.streams import Lines

_MAX_ROUNDS = 7
"""Up to eight hosts all pairs are measured, beyond that seven pairs of each host."""
_PAIR_LIMIT_S = 30.0


async def measure_pairs(resolved: Resolved, console: Console, limit_s: float) -> Sequence[Pair]:
    """The pairs that were measured in time. What ends the launch otherwise than well is said as ever."""
    on_hosts = len(resolved.topology) > 1
    hosts = tuple(replace(host, slots=host.slots[:1]) if on_hosts else host for host in resolved.topology)
    request = replace(resolved.request, script="all-reduce", no_python=True, no_local_rank=True, module=False)
    launch = replace(resolved, topology=Topology(hosts), request=request)
    plan = make_plan(launch, assumed_master(launch), os.urandom(8).hex())
    names = {rank.rank: node.host if on_hosts else f"device {rank.slot}" for node, rank in plan.ranks}
    pairs: list[Pair] = []

    def take(lines: Lines) -> None:
        for line in lines.lines if lines.stream == 1 else ():
            pair = pair_from_line(line.decode("utf-8", "replace"), names)
            if pair is not None:
                pairs.append(pair)

    display = Display(
        console,
        plan,
        lambda slot: device_name(launch, slot),
        rank_lines=None,
        sinks=[take],
        words=Words(info=False, debug=False),
        folder=None,
        started_at=time.monotonic(),
    )
    fleet = _OtherProgram(make_fleet(launch, plan), lambda node: _with_pairwise(launch, node))
    try:
        await asyncio.wait_for(Run(launch, plan, fleet, display, None).run(), limit_s)
    except asyncio.TimeoutError:
        console.say(f"error: pairs of hosts were not through in {limit_s:g} s, and were ended")
    return pairs


def _with_pairwise(launch: Resolved, node: NodePlan) -> NodePlan:
    """The program's text as an argument: the hosts have no file of it."""
    python = host_python(launch, launch.topology.hosts[node.node_rank])
    text = Path(pairwise.__file__).read_text(encoding="utf-8")
    argv = (python, "-u", "-c", text, str(_MAX_ROUNDS), str(_PAIR_LIMIT_S))
    ranks = tuple(rank._replace(argv=argv) for rank in node.ranks)
    return node._replace(cwd="/", script="", ranks=ranks)


class _OtherProgram:
    """A fleet whose agents are told to run something else than the plan says."""

    def __init__(self, fleet: Fleet, change: Callable[[NodePlan], NodePlan]) -> None:
        self._fleet = fleet
        self._change = change
        self.can_probe = fleet.can_probe

    def start(self, post: Post) -> None:
        self._fleet.start(post)

    def begin(self, plans: Sequence[NodePlan]) -> None:
        self._fleet.begin([self._change(plan) for plan in plans])

    def send(self, message: wire.Down) -> None:
        self._fleet.send(message)

    def tell(self, node_rank: int, data: bytes) -> None:
        self._fleet.tell(node_rank, data)

    def stop(self, order: wire.Stop, *, has_begun: bool) -> None:
        self._fleet.stop(order, has_begun=has_begun)

    def drop_silent(self, lease_s: float) -> None:
        self._fleet.drop_silent(lease_s)

    async def close(self) -> None:
        await self._fleet.close()
