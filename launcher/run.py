"""Carry a launch out: turn what agents and the user do into inputs, do what `step` says, until Finish."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from dslaunch.launcher import wire
from dslaunch.launcher.census_taker import CensusTaker
from dslaunch.launcher.clock_offset import ClockOffset
from dslaunch.launcher.control.desk import Desk
from dslaunch.launcher.display import Display
from dslaunch.launcher.fleet import Fleet
from dslaunch.launcher.hang_guard import HangGuard
from dslaunch.launcher.hang_limit import HangLimit
from dslaunch.launcher.master import MasterError, settle
from dslaunch.launcher.plan import LaunchPlan, Resolved, make_plan
from dslaunch.launcher.supervise import Begin, Deadline, Finish, FromAgent, Input, Job, Signal, Stop, step
from dslaunch.launcher.verdict import (
    Cause,
    Interrupted,
    JobHung,
    NodeLost,
    PeerEnded,
    RankFailed,
    Verdict,
    grace_after,
)
from dslaunch.launcher.whereabouts import Whereabouts

if TYPE_CHECKING:  # what links nodes by hand is slow to load, and rarely needed
    from dslaunch.launcher.peers import Peers

HEARTBEAT_S = 2.0
_NUM_FIRST_BEATS = 3
_TICK_S = 0.1
_PROBE_S = 5.0
"""How long hosts may take to try node 0's addresses."""
_GOODBYE_S = 20.0
"""After the grace: what an agent may need to sweep and to send the rest of its output."""
_PATIENCE_S = 30.0
"""Of silence, after which an interrupted job is asked where it is."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *wire.NOTICE_SIGNALS)
_STDIN_BYTES = 1 << 16


class Run:
    """One launch. `run` may be called once."""

    def __init__(
        self,
        resolved: Resolved,
        plan: LaunchPlan,
        fleet: Fleet,
        display: Display,
        peers: Peers | None,
        desk: Desk | None = None,
    ) -> None:
        """`peers` are the other nodes of a job that was started by hand; others ask at `desk`, if any.

        `progress` will be the newest checkpoint that a node has told of.
        """
        self.progress = ""
        self._peers = peers
        self._resolved = resolved
        self._plan = plan
        self._fleet = fleet
        self._display = display
        self._desk = desk
        if desk is not None:
            desk.begin_attempt(self, plan, resolved.attempt)
        self._census = CensusTaker(plan, fleet.send)
        limit = resolved.request.hang_limit
        self._hang_guard: HangGuard | None = None
        if limit is not None:
            found = partial(self._found_hung, limit)
            self._hang_guard = HangGuard(limit, self._census, found, display.keep, is_alone=peers is None)
        self._inputs: asyncio.Queue[Input] = asyncio.Queue()
        self._ready: dict[int, wire.Ready] = {}
        self._reached: dict[int, wire.Reached] = {}
        self._all_probed = asyncio.Event()
        self._offsets: dict[int, ClockOffset] = {}
        self._has_begun = False
        self._is_stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []

    async def run(self) -> Verdict:
        """Start everything, see it through, leave nothing."""
        loop = asyncio.get_running_loop()
        handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in handled:
            loop.add_signal_handler(number, self._inputs.put_nowait, Interrupted(number))
        loop.add_signal_handler(signal.SIGTSTP, self._display.stays_awake)
        self._fleet.start(self._inputs.put_nowait)
        if self._peers is not None:
            self._peers.start(self._inputs.put_nowait)
        self._tasks += [asyncio.create_task(self._beat()), asyncio.create_task(self._tick())]
        if self._hang_guard is not None:
            self._tasks.append(asyncio.create_task(self._hang_guard.guard()))
        self._at(self._resolved.request.start_timeout_s, Deadline.START)
        try:
            return await self._obey()
        finally:
            for timer in self._timers:
                timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._fleet.close()
            if self._peers is not None:
                await self._peers.close()
            for number in (*handled, signal.SIGTSTP):
                loop.remove_signal_handler(number)

    async def _obey(self) -> Verdict:
        job = Job({node.node_rank: tuple(rank.rank for rank in node.ranks) for node in self._plan.launched})
        while True:
            what = self._timed(await self._inputs.get())
            self._note(what)
            self._display.on_input(what)
            self._census.on_input(what)
            if self._desk is not None:
                self._desk.on_input(what)
            if self._hang_guard is not None:
                self._hang_guard.on_input(what)
            job, actions = step(job, what)
            for action in actions:
                if isinstance(action, Finish):
                    return await self._finish(action.verdict)
                self._display.on_action(action)
                match action:
                    case Begin():
                        self._tasks.append(asyncio.create_task(self._begin()))
                    case Stop(cause, number):
                        self._is_stopped = True
                        if self._desk is not None:
                            self._desk.stops()
                        if self._peers is not None:
                            self._peers.report(cause, self._display.cause_lines(cause))
                        self._stop(cause, number)
                    case Signal(number):
                        self._fleet.send(wire.Signal(number))

    # -- what others may want of a running job

    def interrupt(self, number: int) -> None:
        """As if that signal had come."""
        self._inputs.put_nowait(Interrupted(number))

    def signal_ranks(self, rank: int | None, number: int) -> bool:
        """Pass a signal to one rank, or to all; whether it can be."""
        if not self._fleet.can_probe and (rank is not None or number not in wire.NOTICE_SIGNALS):
            return False
        self._fleet.send(wire.Signal(number) if rank is None else wire.RankSignal(rank, number))
        return True

    async def take_census(self, *, with_flight: bool) -> Whereabouts:
        """Where the ranks are, and what their flight recorders hold."""
        return await self._census.take(with_flight=with_flight)

    # -- ends

    def _stop(self, cause: Cause, number: int) -> None:
        """End every rank; where it is not the user who ends it, after a look at where they are."""
        request = self._resolved.request
        grace_s = grace_after(cause, request.grace_s, request.lease_s)
        census_s = wire.CENSUS_S if self._asks_before(cause) else 0.0
        self._at(census_s + grace_s + _GOODBYE_S, Deadline.STOP)
        self._fleet.stop(wire.Stop(number, grace_s, census_s), has_begun=self._has_begun)

    def _asks_before(self, cause: Cause) -> bool:
        """Whether there is time to look at where the ranks are; also where a user loses patience."""
        if isinstance(cause, Interrupted):
            return self._hang_guard is not None and self._hang_guard.silent_s > _PATIENCE_S
        if isinstance(cause, PeerEnded):
            return not cause.is_cut_off
        return isinstance(cause, RankFailed | NodeLost)

    def _found_hung(self, limit: HangLimit, hung: JobHung) -> None:
        """Nothing is said of a job that ends already."""
        if self._is_stopped:
            return
        self._display.hangs(hung, is_ended=limit.kill)
        if limit.kill:
            self._inputs.put_nowait(hung)

    async def _finish(self, verdict: Verdict) -> Verdict:
        """The last word, which the nodes of a job started by hand have in common."""
        if self._peers is not None:
            verdict = await self._peers.settle(verdict, self._inputs)
        self._display.on_action(Finish(verdict))
        return verdict

    def _timed(self, what: Input) -> Input:
        """The input with its time by this machine's clock, so that exits on several nodes can be ordered."""
        match what:
            case FromAgent(node_rank, wire.Heartbeat(sent_ns, echo_ns)):
                before = self._offsets.get(node_rank, ClockOffset())
                offset = before.heard(echo_ns=echo_ns, sent_ns=sent_ns, now_ns=time.time_ns())
                self._offsets[node_rank] = offset
                if offset != before:
                    self._display.clock_is_known(node_rank, offset)
            case FromAgent(node_rank, wire.Exited() as exited):
                offset = self._offsets.get(node_rank, ClockOffset())
                return FromAgent(node_rank, exited._replace(time_ns=offset.to_launcher_ns(exited.time_ns)))
            case _:
                pass
        return what

    def _note(self, what: Input) -> None:
        match what:
            case FromAgent(node_rank, wire.Ready() as ready):
                self._ready[node_rank] = ready
            case FromAgent(_, wire.Goodbye(progress=progress)) if progress:
                self.progress = progress
            case FromAgent(node_rank, wire.Reached() as reached) if node_rank != 0:
                self._reached[node_rank] = reached
                if len(self._reached) == len(self._plan.launched) - 1:
                    self._all_probed.set()
            case _:
                pass

    async def _begin(self) -> None:
        """Settle where the ranks meet, and give every agent its plan.

        The first heartbeats compare clocks best: the way is quiet before ranks run.
        """
        for _ in range(_NUM_FIRST_BEATS):
            self._fleet.send(wire.Heartbeat(time.time_ns(), 0))
        try:
            meeting = settle(self._resolved, self._ready, await self._probe())
        except MasterError as error:
            self._inputs.put_nowait(FromAgent(0, wire.Refused(error.what, error.hint)))
            return
        if self._is_stopped:
            return
        self._plan = make_plan(self._resolved, meeting.master, self._plan.job_id, meeting.network)
        self._display.began(self._plan, meeting)
        self._has_begun = True
        self._fleet.begin(self._plan.launched)
        if self._resolved.request.stdin_rank is not None:
            self._forward_stdin(self._resolved.request.stdin_rank)

    async def _probe(self) -> dict[int, wire.Reached]:
        """Ask every other host which addresses of node 0 it reaches; who does not tell reaches none."""
        others = [node.node_rank for node in self._plan.launched if node.node_rank != 0]
        is_told = self._resolved.own_node is not None or self._resolved.request.master_addr is not None
        if is_told or not others or not self._fleet.can_probe:
            return {}
        self._fleet.send(wire.Probe(self._ready[0].addresses, self._ready[0].probe_port))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_probed.wait(), _PROBE_S)
        return {i: self._reached.get(i, wire.Reached((), ())) for i in others}

    def _forward_stdin(self, rank: int) -> None:
        """What the user types, to the rank that reads it."""
        node = next(node for node, planned in self._plan.ranks if planned.rank == rank)
        loop = asyncio.get_running_loop()

        def forward() -> None:
            data = os.read(0, _STDIN_BYTES)
            self._fleet.tell(node.node_rank, wire.encode_stdin(rank, data))
            if not data:
                loop.remove_reader(0)

        try:
            loop.add_reader(0, forward)
        except PermissionError:  # a file: it is always readable, and not watched
            self._tasks.append(asyncio.create_task(self._forward_file(node.node_rank, rank)))

    async def _forward_file(self, node_rank: int, rank: int) -> None:
        data = b"x"
        while data:
            data = os.read(0, _STDIN_BYTES)
            self._fleet.tell(node_rank, wire.encode_stdin(rank, data))
            await asyncio.sleep(0)

    def _at(self, delay_s: float, deadline: Deadline) -> None:
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(delay_s, self._inputs.put_nowait, deadline))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._fleet.send(wire.Heartbeat(time.time_ns(), 0))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._display.on_tick()
            self._fleet.drop_silent(self._resolved.request.lease_s)
