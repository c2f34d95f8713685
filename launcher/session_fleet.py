"""Agents that are each started by a session of their own: local, ssh, openssh."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from dslaunch.launcher import wire
from dslaunch.launcher.fleet import AgentLink, NoAgentError, Post, no_agent, own_fault
from dslaunch.launcher.node_plan import NodePlan, plans_to_json
from dslaunch.launcher.supervise import AgentClosed
from dslaunch.runner_backends.command import Backend, NodeCommand, Session
from dslaunch.runner_backends.errors import BackendError


class SessionFleet:
    """One session for each node; each agent has a way up and a way down."""

    can_probe = True

    def __init__(
        self, backend: Backend, commands: Mapping[int, NodeCommand], *, python: str, lease_s: float
    ) -> None:
        """`commands` by node rank; `python` is named where it cannot be run."""
        self._backend = backend
        self._commands = commands
        self._python = python
        self._lease_s = lease_s
        self._links: dict[int, AgentLink] = {}
        self._sessions: dict[int, Session] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, post: Post) -> None:
        for node_rank, command in self._commands.items():
            self._links[node_rank] = AgentLink(node_rank, post)
            self._tasks[node_rank] = asyncio.create_task(self._serve(self._links[node_rank], command))

    async def _serve(self, link: AgentLink, command: NodeCommand) -> None:
        """One agent from its start to its end, which is always told."""
        closed = AgentClosed(link.node_rank, "was not started", "")
        try:
            session = await self._backend.start(command)
            self._sessions[link.node_rank] = session
            try:
                await link.listen(session.output())
            except (wire.WireError, NoAgentError) as error:
                session.kill()
                await session.wait()
                closed = no_agent(link.node_rank, error)
            else:
                closed = link.closed(await session.wait(), self._python, self._lease_s)
        except BackendError as error:
            closed = AgentClosed(link.node_rank, error.what, error.hint)
        except Exception as error:
            closed = own_fault(link.node_rank, error)
            raise
        finally:
            link.post(closed)

    def begin(self, plans: Sequence[NodePlan]) -> None:
        for plan in plans:
            if plan.node_rank in self._sessions:  # one that could not be started has told its end
                self.tell(plan.node_rank, wire.encode_plans(plans_to_json([plan])))

    def send(self, message: wire.Down) -> None:
        for session in self._sessions.values():
            session.write(wire.encode(message))

    def tell(self, node_rank: int, data: bytes) -> None:
        self._sessions[node_rank].write(data)

    def stop(self, order: wire.Stop, *, has_begun: bool) -> None:
        for node_rank, task in self._tasks.items():
            session = self._sessions.get(node_rank)
            if session is None:
                task.cancel()
            elif has_begun:
                session.write(wire.encode(order))
            else:
                session.close_stdin()

    def drop_silent(self, lease_s: float) -> None:
        for node_rank, session in self._sessions.items():
            if self._links[node_rank].falls_silent(lease_s):
                session.kill()

    async def close(self) -> None:
        for session in self._sessions.values():
            session.kill()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._backend.close()
