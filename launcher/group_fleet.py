"""Agents that one tool starts on all hosts at once: srun, mpirun, and pdsh, which carries no stdin."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dslaunch.launcher import wire
from dslaunch.launcher.fleet import AgentLink, NoAgentError, Post, no_agent, own_fault
from dslaunch.launcher.node_plan import NodePlan, plans_to_json
from dslaunch.launcher.supervise import AgentClosed, FromAgent, Input
from dslaunch.runner_backends.command import Group, GroupBackend, GroupCommand, SessionEnd
from dslaunch.runner_backends.errors import BackendError

_KILL = (
    "import os,sys;w=sys.argv[1];p={}.get(int(os.environ[w[4:]] if w[:4]=='env:' else w));"
    'c="/proc/%s/cmdline"%p;'
    'p and os.path.exists(c) and b"dslaunch-agent" in open(c,"rb").read() and os.kill(p,{})'
)
"""Signals the agent of each host, if that pid is still an agent's."""
_SIGNAL_S = 5.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What every group fleet is told.

    `render(plans)` gives the tool's command; `plans` is JSON for tools without stdin, else "". Agents
    without plans stay for those with plans, `handover_s` at most: in an allocation tools may take turns.
    """

    num_nodes: int
    python: tuple[str, ...]
    lease_s: float
    render: Callable[[str], GroupCommand]
    handover_s: float = 5.0


class GroupFleet:
    """Agents with a common way down: what is written reaches all of them."""

    can_probe = True

    def __init__(self, backend: GroupBackend, settings: GroupSettings) -> None:
        self._backend = backend
        self._settings = settings
        self._links: list[AgentLink] = []
        self._group: Group | None = None
        self._has_ended_tool = False
        self._closed: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, post: Post) -> None:
        self._links = self._new_links(post, self._closed)
        self._tasks.append(asyncio.create_task(self._serve(self._settings.render(""))))

    def _new_links(self, post: Post, closed: set[int]) -> list[AgentLink]:
        posting = self._posting(post, closed)
        return [AgentLink(i, posting) for i in range(self._settings.num_nodes)]

    def _posting(self, post: Post, closed: set[int]) -> Post:
        """An agent that said goodbye has ended, though the tool goes on; each end is told once."""

        def once(what: Input) -> None:
            if isinstance(what, AgentClosed):
                if what.node_rank in closed:
                    return
                closed.add(what.node_rank)
            post(what)
            if isinstance(what, FromAgent) and isinstance(what.message, wire.Goodbye):
                once(AgentClosed(what.node_rank, "ended", ""))

        return once

    async def _serve(self, command: GroupCommand) -> None:
        """The tool from its start to its end; then every agent's end has been told."""
        links = self._links
        ends = [AgentClosed(link.node_rank, "was not started", "") for link in links]
        try:
            group = self._group = await self._backend.start(command)
            heard = await asyncio.gather(*(self._listen(link, group) for link in links))
            end = await group.wait()
            ends = [told or self._end(link, end) for link, told in zip(links, heard, strict=True)]
        except BackendError as error:
            ends = [AgentClosed(link.node_rank, error.what, error.hint) for link in links]
        except Exception as error:
            ends = [own_fault(link.node_rank, error) for link in links]
            raise
        finally:
            for link, closed in zip(links, ends, strict=True):
                link.post(closed)

    async def _listen(self, link: AgentLink, group: Group) -> AgentClosed | None:
        try:
            await link.listen(group.output(link.node_rank))
        except (wire.WireError, NoAgentError) as error:
            group.kill()
            return no_agent(link.node_rank, error)
        if group.reason(link.node_rank) and not link.said_goodbye:
            reason = group.reason(link.node_rank)
            link.post(self._dated(link, AgentClosed(link.node_rank, reason, self._hint(link))))
        elif group.returncode(link.node_rank) is not None and not link.said_goodbye:
            # the tool goes on for the other hosts' sake, and nobody would miss this one before the lease ends
            link.post(self._end(link, SessionEnd(group.returncode(link.node_rank), "")))
        return None

    def _hint(self, link: AgentLink) -> str:
        return "" if link.is_ready else f"try {self._backend.name} to it by hand, or --launcher ssh"

    def _end(self, link: AgentLink, end: SessionEnd) -> AgentClosed:
        return self._dated(link, link.closed(end, self._settings.python[-1], self._settings.lease_s))

    def _dated(self, link: AgentLink, closed: AgentClosed) -> AgentClosed:
        """Where we have ended the tool, nobody's silence tells when anything went wrong."""
        return replace(closed, heard_ns=0 if self._has_ended_tool else link.heard_ns)

    def begin(self, plans: Sequence[NodePlan]) -> None:
        self._write(wire.encode_plans(plans_to_json(plans)))

    def send(self, message: wire.Down) -> None:
        self._write(wire.encode(message))

    def tell(self, node_rank: int, data: bytes) -> None:
        self._write(data)  # agents pass over what is for another's rank

    def _write(self, data: bytes) -> None:
        if self._group is not None:
            self._group.write(data)

    def stop(self, order: wire.Stop, *, has_begun: bool) -> None:
        if has_begun and self._group is not None:
            self.send(order)
        else:
            self._end_tool()

    def _end_tool(self) -> None:
        self._has_ended_tool = True
        if self._group is None:
            self._tasks[0].cancel()
        else:
            self._group.close_stdin()

    def drop_silent(self, lease_s: float) -> None:
        for link in self._links:
            if link.falls_silent(lease_s):
                reason = f"no sign of life for {lease_s:g} s"
                link.post(self._dated(link, AgentClosed(link.node_rank, reason, "")))

    async def close(self) -> None:
        if self._group is not None:
            self._group.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._backend.close()


class ArgvFleet(GroupFleet):
    """Agents that get their plans in argv, and of what is sent later only the end of the tool.

    The tool runs twice: first its agents only say ready; when it is known where the ranks meet, it starts
    others with the plans. The first stay until then, for they hold the port. Signals travel by runs of their
    own.
    """

    can_probe = False

    def __init__(self, backend: GroupBackend, settings: GroupSettings) -> None:
        super().__init__(backend, settings)
        self._plans: Sequence[NodePlan] = ()
        self._have_plans = asyncio.Event()
        self._asking: Group | None = None
        self._signals: list[asyncio.Task[None]] = []

    def start(self, post: Post) -> None:
        self._tasks.append(asyncio.create_task(self._ask_and_run(post)))

    async def _ask_and_run(self, post: Post) -> None:
        """The first agents' ends are told only where they end before they were all ready."""

        def post_until_begun(what: Input) -> None:
            if not self._plans or self._has_ended_tool:
                post(what)

        def post_and_let_go(what: Input) -> None:
            post(what)
            match what:
                case FromAgent(0, message) if not isinstance(message, wire.Ready):
                    self._let_first_go()  # its plan is taken up or refused: the port is its own
                case AgentClosed():
                    self._let_first_go()
                case _:
                    pass

        self._links = self._new_links(post_until_begun, set())
        asking = asyncio.create_task(self._serve(self._settings.render("")))
        begun = asyncio.create_task(self._have_plans.wait())
        self._tasks.append(asking)
        try:
            await asyncio.wait((asking, begun), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            asking.cancel()
            raise
        finally:
            begun.cancel()
        if self._plans and not self._has_ended_tool:
            self._asking = self._group
            self._links = self._new_links(post_and_let_go, self._closed)
            asyncio.get_running_loop().call_later(self._settings.handover_s, self._let_first_go)
            await self._serve(self._settings.render(plans_to_json(self._plans)))

    def _let_first_go(self) -> None:
        if self._asking is not None:
            self._asking.close_stdin()
            self._asking = None

    def begin(self, plans: Sequence[NodePlan]) -> None:
        self._plans = [plan._replace(hears_launcher=False) for plan in plans]
        self._have_plans.set()

    def send(self, message: wire.Down) -> None:
        match message:
            case wire.Signal(signal.SIGKILL):
                self._end_tool()
            case wire.Signal(number):
                self._signal_agents(number)
            case wire.Census():
                self._signal_agents(wire.CENSUS)
            case _:
                pass  # heartbeats do not come down: these plans have no lease

    def tell(self, node_rank: int, data: bytes) -> None:
        raise AssertionError("the command line refuses --stdin for this backend")

    def stop(self, order: wire.Stop, *, has_begun: bool) -> None:
        if has_begun and self._plans and order.signal != signal.SIGKILL:
            self._signal_agents(wire.CENSUS_AND_TERM if order.census_s else order.signal)
        else:
            self._end_tool()

    def _signal_agents(self, number: int) -> None:
        self._signals.append(asyncio.create_task(self._run_kill(number)))
        self._tasks.append(self._signals[-1])

    async def _run_kill(self, number: int) -> None:
        """An agent takes a signal as its ranks': a notice is passed on, any other ends them with grace."""
        await self._all_have_started()
        living = [link for link in self._links if link.node_rank not in self._closed and link.pid]
        if not living:
            return
        pids = {index: link.pid for index, link in enumerate(living)}
        hosts = self._settings.render("").hosts
        argv = (*self._settings.python, "-ISc", _KILL.format(pids, number), self._backend.index_word)
        command = GroupCommand(tuple(hosts[link.node_rank] for link in living), argv, b"")
        group = await self._backend.start(command)
        try:
            end = await asyncio.wait_for(group.wait(), _SIGNAL_S)
        except asyncio.TimeoutError:
            group.kill()
            self._end_tool()
            return
        if end.returncode != 0:
            self._end_tool()  # some agent may not have got it, but this reaches all

    async def _all_have_started(self) -> None:
        """A rank may fail before another host's agent has said its pid."""
        deadline = time.monotonic() + _SIGNAL_S
        while any(link.pid == 0 for link in self._links) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)

    def _end_tool(self) -> None:
        if self._asking is not None and self._asking is self._group:
            self._tasks[0].cancel()  # the tool has not been started again yet
        self._let_first_go()
        super()._end_tool()

    async def close(self) -> None:
        self._let_first_go()
        if self._signals:
            await asyncio.wait(self._signals, timeout=_SIGNAL_S)
        await super().close()
