"""Send a surveyor to every host and gather what they answer; who does not is no reason to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dslaunch.launcher import wire
from dslaunch.launcher.check.host_answer import HostAnswer
from dslaunch.launcher.fleet import Fleet
from dslaunch.launcher.fleets import make_fleet
from dslaunch.launcher.master import assumed_master
from dslaunch.launcher.node_plan import NodePlan
from dslaunch.launcher.plan import LaunchPlan, Master, Resolved, host_python, make_plan
from dslaunch.launcher.render import survey_argv
from dslaunch.launcher.request import RunMode
from dslaunch.launcher.supervise import AgentClosed, FromAgent, Input
from dslaunch.launcher.survey.records import (
    ANY_PORT,
    MARK,
    MASTER_PORT,
    NEXT_HOST,
    Request,
    answer_from_json,
)
from dslaunch.launcher.verdict import how_it_ended

_NUM_BEATS = 3
_STDOUT, _STDERR = 1, 2
_TRAVEL_S = 20.0
"""For a surveyor to be started, perhaps from a cold shared file system, and for its answer to travel."""
_FAREWELL_S = 0.5
_LIMIT_S = 10.0
"""For a surveyor to look at all things; what it does not know by then it does not tell."""


async def ask_hosts(resolved: Resolved, *, is_thorough: bool, start_s: float) -> Sequence[HostAnswer]:
    """In the order of the hosts. `start_s` is how long they may take to connect."""
    plan = make_plan(resolved, assumed_master(resolved), os.urandom(8).hex())
    fleet = make_fleet(resolved, plan)
    asking = _Asking(resolved, plan, fleet, is_thorough=is_thorough)
    try:
        await asking.run(start_s)
    finally:
        await fleet.close()
    return [asking.answers[node.node_rank] for node in plan.launched]


class _Asking:
    def __init__(self, resolved: Resolved, plan: LaunchPlan, fleet: Fleet, *, is_thorough: bool) -> None:
        self._resolved = resolved
        self._plan = plan
        self._fleet = fleet
        self._is_thorough = is_thorough
        self._inputs: asyncio.Queue[Input] = asyncio.Queue()
        self._said: dict[tuple[int, int], str] = {}
        self._closed: set[int] = set()
        self._started_at = time.monotonic()
        self.answers = {
            node.node_rank: HostAnswer(node.host, tuple(rank.slot for rank in node.ranks))
            for node in plan.launched
        }

    async def run(self, start_s: float) -> None:
        self._fleet.start(self._inputs.put_nowait)
        await self._until(lambda one: one.ready is not None, start_s)
        for late in self._open(lambda one: one.ready is not None):
            self._fail(late, f"did not answer in {start_s:g} s", "try ssh to it by hand")
        asked = [node for node in self._plan.launched if self.answers[node.node_rank].ready]
        if not asked:
            return
        for _ in range(_NUM_BEATS):
            self._fleet.send(wire.Heartbeat(time.time_ns(), 0))
        self._fleet.begin(self._surveys(asked))
        limit_s = _LIMIT_S + _TRAVEL_S
        await self._until(lambda one: one.answer is not None, limit_s)
        for late in self._open(lambda one: one.answer is not None):
            self._fail(late, f"told nothing of itself in {limit_s:g} s", "look at its load and its disks")
        with contextlib.suppress(asyncio.TimeoutError):  # those whose doors nobody came to stay a while
            await asyncio.wait_for(
                self._hear_all(lambda: len(self._closed) == len(self.answers)), _FAREWELL_S
            )

    async def _until(self, is_done: Callable[[HostAnswer], bool], timeout_s: float) -> None:
        """Hear the hosts until each is done or has failed, or the time is over."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hear_all(lambda: not self._open(is_done)), timeout_s)

    def _open(self, is_done: Callable[[HostAnswer], bool]) -> list[int]:
        return [i for i, one in self.answers.items() if not one.what and not is_done(one)]

    async def _hear_all(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._hear(await self._inputs.get())

    def _hear(self, what: Input) -> None:
        match what:
            case FromAgent(node_rank, wire.Ready() as ready):
                answered_s = time.monotonic() - self._started_at
                self.answers[node_rank] = replace(self.answers[node_rank], ready=ready, answered_s=answered_s)
            case FromAgent(node_rank, wire.Heartbeat(sent_ns, echo_ns)):
                self._compare_clocks(node_rank, echo_ns, sent_ns)
            case FromAgent(node_rank, wire.Output(_, stream, text)):
                self._take(node_rank, stream, text)
            case FromAgent(node_rank, wire.Refused(refusal, hint)):
                self._fail(node_rank, refusal, hint)
            case FromAgent(node_rank, wire.Exited(_, returncode)):
                said = self._said.get((node_rank, _STDERR), "").strip().rpartition("\n")[2]
                self._fail(node_rank, f"its Python {how_it_ended(returncode)}: {said}", "see --python")
            case AgentClosed(node_rank, reason, hint):
                self._closed.add(node_rank)
                self._fail(node_rank, reason, hint)
            case _:
                pass

    def _fail(self, node_rank: int, what: str, hint: str) -> None:
        """Counts only before the answer; the first word stays."""
        one = self.answers[node_rank]
        if one.answer is None and not one.what:
            self.answers[node_rank] = replace(one, what=what, hint=hint)

    def _compare_clocks(self, node_rank: int, echo_ns: int, sent_ns: int) -> None:
        one = self.answers[node_rank]
        clock = one.clock.heard(echo_ns=echo_ns, sent_ns=sent_ns, now_ns=time.time_ns())
        self.answers[node_rank] = replace(one, clock=clock)

    def _take(self, node_rank: int, stream: int, text: str) -> None:
        said = self._said[node_rank, stream] = self._said.get((node_rank, stream), "") + text
        _, mark, line = said.partition(MARK)
        if stream == _STDOUT and mark and "\n" in line and self.answers[node_rank].answer is None:
            try:
                answer = answer_from_json(line.partition("\n")[0])
            except (ValueError, LookupError, TypeError) as error:
                self._fail(node_rank, f"what it tells of itself cannot be read: {error!r}", "see --python")
                return
            self.answers[node_rank] = replace(self.answers[node_rank], answer=answer)
            self._compare_clocks(node_rank, 0, answer.time_ns)

    def _surveys(self, asked: Sequence[NodePlan]) -> Sequence[NodePlan]:
        """The plans of all nodes, for tools give them out by place; those who do not listen have no part."""
        places = {node.node_rank: i for i, node in enumerate(asked)}
        port = self._plan.master.port
        first = self._ready(asked[0])
        is_idle = first.port_in_use or len(asked) == 1  # nobody listens there: leave it to other jobs
        meeting = make_plan(
            self._resolved,
            Master(self._plan.master.addr, first.free_port if is_idle else port),
            self._plan.job_id,
        )
        return [
            self._survey(node, self._request(asked, places.get(node.node_rank, 0), port))
            for node in meeting.launched
        ]

    def _survey(self, node: NodePlan, request: Request) -> NodePlan:
        host = self._resolved.topology.hosts[node.node_rank]
        argv = survey_argv(host_python(self._resolved, host), request)
        rank = node.ranks[0]._replace(argv=argv)
        return node._replace(
            cwd="/",
            script="",
            bound_cores=None,
            stdin_rank=None,
            ranks=(rank,),
            grace_s=1.0,
            lease_s=2 * (_LIMIT_S + _TRAVEL_S),  # no heartbeats are sent for so short a time
        )

    def _request(self, asked: Sequence[NodePlan], place: int, port: int) -> Request:
        """Everyone calls the first host, at the port where ranks meet and at one that any process may get,
        and the next host: NCCL and gloo connect those who are neighbours.
        """
        request = self._resolved.request
        first, others = self._ready(asked[0]), len(asked) - 1
        told = (request.master_addr,) if request.master_addr else first.addresses
        calls: list[tuple[str, tuple[str, ...], int]] = []
        doors: list[tuple[str, int, int]] = []
        if place == 0 and others:
            doors += [] if first.port_in_use else [(MASTER_PORT, port, others)]
            doors += [(ANY_PORT, first.free_port, others)]
        elif others:
            calls += [] if first.port_in_use else [(MASTER_PORT, told, port)]
            calls += [(ANY_PORT, told, first.free_port)]
            doors += [(NEXT_HOST, self._ready(asked[place]).free_port, 1)] if place > 1 else []
        if 0 < place < others:
            neighbour = self._ready(asked[place + 1])
            calls += [(NEXT_HOST, neighbour.addresses, neighbour.free_port)]
        return Request(
            place=place,
            num_asked=len(asked),
            folder=self._resolved.cwd,
            script="" if request.run_mode is RunMode.PROGRAM else request.script,
            is_module=request.run_mode is RunMode.MODULE,
            accelerator=request.accelerator,
            is_thorough=self._is_thorough,
            master=request.master_addr or asked[0].host,
            calls=tuple(calls),
            doors=tuple(doors),
            limit_s=_LIMIT_S,
        )

    def _ready(self, node: NodePlan) -> wire.Ready:
        ready = self.answers[node.node_rank].ready
        assert ready is not None
        return ready
