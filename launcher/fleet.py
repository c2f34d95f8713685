"""The agents of one launch, whatever started them: what the run asks of them, how they are heard."""

from __future__ import annotations

import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, get_args

from dslaunch.launcher import wire
from dslaunch.launcher.node_plan import NodePlan
from dslaunch.launcher.supervise import AgentClosed, FromAgent, Input
from dslaunch.launcher.verdict import how_it_ended
from dslaunch.runner_backends.command import SessionEnd

_MAX_NOISE_BYTES = 1 << 20
_GREETING = b'{"t":"ready"'
"""How the first frame begins; what login shells print before it is not for us."""

Post = Callable[[Input], None]


class NoAgentError(Exception):
    """What came from a host is no agent's greeting."""


class Fleet(Protocol):
    """Starts agents and talks to them. Posts every Input they cause, and one AgentClosed for each node."""

    can_probe: bool
    """Whether agents can be asked something before they have their plans."""

    def start(self, post: Post) -> None:
        """Begin to start every agent."""

    def begin(self, plans: Sequence[NodePlan]) -> None:
        """Every agent is ready: give out the plans, one for each node, in order."""

    def send(self, message: wire.Down) -> None:
        """To every agent that can be told. Never blocks."""

    def tell(self, node_rank: int, data: bytes) -> None:
        """Frames for one agent. Never blocks."""

    def stop(self, order: wire.Stop, *, has_begun: bool) -> None:
        """End every rank, or, before they have begun, every agent."""

    def drop_silent(self, lease_s: float) -> None:
        """Give up on agents that have said nothing for so long."""

    async def close(self) -> None:
        """End all that is left."""


@dataclass(slots=True)
class AgentLink:
    """What is known of one agent at this end."""

    node_rank: int
    post: Post
    pid: int = 0
    heard_at: float = 0.0
    heard_ns: int = 0
    is_ready: bool = False
    is_silent: bool = False
    said_goodbye: bool = False

    async def listen(self, chunks: AsyncIterator[bytes]) -> None:
        """Post what the agent says, until it ends. Raises WireError or NoAgentError."""
        self.heard_at = time.monotonic()
        decoder: wire.Decoder | None = None
        noise = b""
        async for chunk in chunks:
            self.heard_at, self.heard_ns = time.monotonic(), time.time_ns()
            if decoder is None:
                noise += chunk
                start = noise.find(_GREETING)
                if start < 0:
                    if len(noise) > _MAX_NOISE_BYTES:
                        raise NoAgentError(f"{noise[:80]!r}...")
                    continue
                decoder, chunk = wire.Decoder(), noise[start:]
            for message in decoder.feed(chunk):
                self._hear(message)

    def _hear(self, message: wire.Message) -> None:
        match message:
            case wire.Ready(pid=pid):
                self.is_ready, self.pid = True, pid
            case wire.Goodbye():
                self.said_goodbye = True
            case _ if not isinstance(message, get_args(wire.Up)):
                raise wire.WireError(f"{type(message).__name__} is not for the launcher")
        self.post(FromAgent(self.node_rank, message))

    def falls_silent(self, lease_s: float) -> bool:
        """Whether the agent was heard once, and then not for so long; true once."""
        expected = self.is_ready and not self.said_goodbye and not self.is_silent
        self.is_silent = self.is_silent or (expected and self.heard_at < time.monotonic() - lease_s)
        return expected and self.is_silent

    def closed(self, end: SessionEnd, python: str, lease_s: float) -> AgentClosed:
        """Say how the agent ended; after all its ranks have, nobody reads it."""
        said = end.stderr.strip().rpartition("\n")[2]
        if self.is_silent:
            reason = f"no sign of life for {lease_s:g} s"
        elif end.returncode is None:
            reason = "the connection was lost"
        elif not self.is_ready and end.returncode == 127:
            reason = f"cannot run {python}"
        else:
            reason = f"its agent {how_it_ended(end.returncode)}"
        hint = (
            ""
            if self.is_ready
            else "the same Python must be at the same place on every host, or see --python"
        )
        return AgentClosed(self.node_rank, f"{reason}: {said}" if said else reason, hint, self.heard_ns)


def no_agent(node_rank: int, error: Exception) -> AgentClosed:
    """The end of a conversation with something else than an agent."""
    return AgentClosed(
        node_rank, f"sent something else than an agent does: {error}", "run the command of --dry_run by hand"
    )


def own_fault(node_rank: int, error: Exception) -> AgentClosed:
    """The end of a conversation that this launcher has broken off by a mistake of its own."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return AgentClosed(
        node_rank,
        f"dslaunch itself failed: {error!r} ({where.filename}:{where.lineno})",
        "this is a bug of dslaunch: please report these lines",
    )
