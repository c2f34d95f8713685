"""Carry a launch out: start agents, turn their bytes into inputs, do what `step` says, until Finish."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import get_args

from dslaunch.launcher import supervise, wire
from dslaunch.launcher.display import Display
from dslaunch.launcher.master import MasterError, settled_master
from dslaunch.launcher.node_plan import NodePlan
from dslaunch.launcher.plan import LaunchPlan, Resolved, make_plan
from dslaunch.launcher.render import agent_zip, node_command
from dslaunch.launcher.supervise import (
    AgentClosed,
    Begin,
    Deadline,
    Finish,
    FromAgent,
    Input,
    Job,
    Signal,
    Stop,
    step,
)
from dslaunch.launcher.verdict import Interrupted, Verdict, how_it_ended
from dslaunch.runner_backends.command import Backend, Session, SessionEnd
from dslaunch.runner_backends.errors import BackendError

HEARTBEAT_S = 2.0
_GOODBYE_S = 20.0
"""After the grace: what an agent may need to sweep and to send the rest of its output."""
_MAX_NOISE_BYTES = 1 << 20
_GREETING = wire.encode(wire.Ready("", 0, "", (), False, 0)).split(b",")[0]
"""How the first frame begins; what login shells print before it is not for us."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *supervise.NOTICE_SIGNALS)


class NoAgentError(Exception):
    """What came from a host is no agent's greeting."""


@dataclass(slots=True)
class _Node:
    """The launcher's end of one agent."""

    plan: NodePlan
    session: Session | None = None
    ready: wire.Ready | None = None
    heard_at: float = 0.0
    is_silent: bool = False


class Run:
    """One launch. `run` may be called once."""

    def __init__(self, resolved: Resolved, plan: LaunchPlan, backend: Backend, display: Display) -> None:
        self._resolved = resolved
        self._plan = plan
        self._backend = backend
        self._display = display
        self._nodes = {node.node_rank: _Node(node) for node in plan.launched}
        self._inputs: asyncio.Queue[Input] = asyncio.Queue()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._timers: list[asyncio.TimerHandle] = []

    async def run(self) -> Verdict:
        """Start everything, see it through, leave nothing."""
        loop = asyncio.get_running_loop()
        handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in handled:
            loop.add_signal_handler(number, self._inputs.put_nowait, Interrupted(number))
        archive = agent_zip()
        for node_rank in self._nodes:
            self._tasks[node_rank] = asyncio.create_task(self._serve(node_rank, archive))
        beat = asyncio.create_task(self._keep_alive())
        self._at(self._resolved.request.start_timeout_s, Deadline.START)
        try:
            return await self._obey()
        finally:
            beat.cancel()
            for timer in self._timers:
                timer.cancel()
            for node in self._nodes.values():
                if node.session is not None:
                    node.session.kill()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(beat, *self._tasks.values(), return_exceptions=True)
            await self._backend.close()
            for number in handled:
                loop.remove_signal_handler(number)

    async def _obey(self) -> Verdict:
        ranks = {i: tuple(rank.rank for rank in node.plan.ranks) for i, node in self._nodes.items()}
        job = Job(ranks)
        while True:
            what = await self._inputs.get()
            self._display.on_input(what)
            job, actions = step(job, what)
            for action in actions:
                self._display.on_action(action)
                match action:
                    case Begin():
                        self._begin()
                    case Stop(_, number):
                        self._stop(number, was_begun=job.has_begun)
                    case Signal(number):
                        self._send_all(wire.Signal(number))
                    case Finish(verdict):
                        return verdict

    # -- actions

    def _begin(self) -> None:
        """Settle where the ranks meet, and give every agent its plan."""
        ready = {i: node.ready for i, node in self._nodes.items() if node.ready is not None}
        try:
            master = settled_master(self._resolved, ready)
        except MasterError as error:
            self._inputs.put_nowait(FromAgent(0, wire.Refused(error.what, error.hint)))
            return
        self._plan = make_plan(self._resolved, master, self._plan.job_id)
        self._display.began(self._plan)
        for plan in self._plan.launched:
            session = self._nodes[plan.node_rank].session
            assert session is not None
            session.write(wire.encode_plan(plan.to_json()))

    def _stop(self, number: int, *, was_begun: bool) -> None:
        grace_s = self._resolved.request.grace_s
        self._at(grace_s + _GOODBYE_S, Deadline.STOP)
        for node_rank, node in self._nodes.items():
            if node.session is None:
                self._tasks[node_rank].cancel()
            elif was_begun:
                node.session.write(wire.encode(wire.Stop(number, grace_s)))
            else:
                node.session.close_stdin()

    def _send_all(self, message: wire.Down) -> None:
        for session in self._sessions():
            session.write(wire.encode(message))

    def _sessions(self) -> Iterator[Session]:
        return (node.session for node in self._nodes.values() if node.session is not None)

    def _at(self, delay_s: float, deadline: Deadline) -> None:
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(delay_s, self._inputs.put_nowait, deadline))

    # -- inputs

    async def _serve(self, node_rank: int, archive: bytes) -> None:
        """One agent from its start to its end, which is always told, as AgentClosed."""
        closed = AgentClosed(node_rank, "was not started", "")
        try:
            closed = await self._converse(node_rank, archive)
        except BackendError as error:
            closed = AgentClosed(node_rank, error.what, error.hint)
        finally:
            self._inputs.put_nowait(closed)

    async def _converse(self, node_rank: int, archive: bytes) -> AgentClosed:
        node = self._nodes[node_rank]
        host = self._resolved.topology.hosts[node_rank]
        command = node_command(host, self._resolved.python, self._plan.master.port, archive)
        node.session = await self._backend.start(command)
        node.heard_at = time.monotonic()
        try:
            async for messages in _messages(node.session):
                node.heard_at = time.monotonic()
                for message in messages:
                    if isinstance(message, wire.Ready):
                        node.ready = message
                    self._inputs.put_nowait(FromAgent(node_rank, message))
        except (wire.WireError, NoAgentError) as error:
            node.session.kill()
            await node.session.wait()
            return AgentClosed(
                node_rank, f"sent something else than an agent does: {error}", "try ssh to it by hand"
            )
        return _closed(node, await node.session.wait(), self._resolved)

    async def _keep_alive(self) -> None:
        """Heartbeats down; and an agent that has been silent for the lease is taken for lost."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._send_all(wire.Heartbeat())
            lease_end = time.monotonic() - self._resolved.request.lease_s
            for node in self._nodes.values():
                if node.session is not None and node.ready is not None and node.heard_at < lease_end:
                    node.is_silent = True
                    node.session.kill()


async def _messages(session: Session) -> AsyncIterator[list[wire.Up]]:
    """What the agent says, a chunk's worth at a time. Raises WireError or NoAgentError."""
    decoder: wire.Decoder | None = None
    noise = b""
    async for chunk in session.output():
        if decoder is None:
            noise += chunk
            start = noise.find(_GREETING)
            if start < 0:
                if len(noise) > _MAX_NOISE_BYTES:
                    raise NoAgentError(f"{noise[:80]!r}...")
                continue
            decoder, chunk = wire.Decoder(), noise[start:]
        messages: list[wire.Up] = []
        for message in decoder.feed(chunk):
            if not isinstance(message, get_args(wire.Up)):
                raise wire.WireError(f"{type(message).__name__} is not for the launcher")
            messages.append(message)
        yield messages


def _closed(node: _Node, end: SessionEnd, resolved: Resolved) -> AgentClosed:
    """Say how an agent ended; after all its ranks have, nobody reads it."""
    said = end.stderr.strip().rpartition("\n")[2]
    if node.is_silent:
        reason = f"no sign of life for {resolved.request.lease_s:g} s"
    elif end.returncode is None:
        reason = "the connection was lost"
    elif node.ready is None and end.returncode == 127:
        reason = f"cannot run {resolved.python}"
    else:
        reason = f"its agent {how_it_ended(end.returncode)}"
    hint = "the same Python must be at the same place on every host" if node.ready is None else ""
    return AgentClosed(node.plan.node_rank, f"{reason}: {said}" if said else reason, hint)
