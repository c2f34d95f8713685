"""What a backend is given and what it gives back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from dslaunch.hostfile import Host


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """One process on one host: all a backend ever sees.

    `argv` reaches the process byte for byte; `stdin` is sent first, and the stream stays open after it.
    """

    host: Host
    argv: tuple[str, ...]
    stdin: bytes


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How the remote process, or the way to it, ended.

    `returncode` is the process's (negative for a signal), None when the link was lost before it was known.
    `stderr` is the tail (8 KiB at most) of what it, or the tool that carried it, said on stderr.
    """

    returncode: int | None
    stderr: str


class Session(Protocol):
    """A running NodeCommand. Closing its stdin asks it to end; `kill` gives up on it."""

    def output(self) -> AsyncIterator[bytes]:
        """Chunks of stdout as they come, until it ends."""

    def write(self, data: bytes) -> None:
        """Queue bytes for stdin. Never blocks; after the process or the link is gone it does nothing."""

    def close_stdin(self) -> None:
        """Let what is queued go out, then send EOF."""

    def kill(self) -> None:
        """Drop the link at once (local: SIGKILL). `wait` then returns soon."""

    async def wait(self) -> SessionEnd:
        """The end, once stdout is drained."""


class Backend(Protocol):
    """A way to run commands on hosts."""

    name: str

    async def start(self, command: NodeCommand) -> Session:
        """Run the command. Raises BackendError, naming the host and the reason, when it cannot be started."""

    async def close(self) -> None:
        """Release every connection."""


@dataclass(frozen=True, slots=True)
class GroupCommand:
    """One process on each of several hosts, all started by one tool with the same argv.

    `argv` reaches every process byte for byte, but for the word `index_word` of the backend, from which the
    process learns its place in `hosts`. `stdin` is sent first, to all of them.
    """

    hosts: tuple[Host, ...]
    argv: tuple[str, ...]
    stdin: bytes


class Group(Protocol):
    """A running GroupCommand. What is written reaches every process, what they say is told apart."""

    def output(self, index: int) -> AsyncIterator[bytes]:
        """Whole lines of stdout of the process on `hosts[index]`, as they come, until the tool ends."""

    def reason(self, index: int) -> str:
        """The tool's own words about the process on `hosts[index]`; "" where it said nothing."""

    def returncode(self, index: int) -> int | None:
        """How the process on `hosts[index]` ended, negative for a signal; None where nothing tells."""

    def write(self, data: bytes) -> None:
        """Queue bytes for every process's stdin. Only where the backend `has_stdin`; never blocks."""

    def close_stdin(self) -> None:
        """Let what is queued go out, then EOF to every process. To pdsh's that is the end of pdsh."""

    def kill(self) -> None:
        """SIGKILL the tool."""

    async def wait(self) -> SessionEnd:
        """How the tool ended, once every output is drained."""


class GroupBackend(Protocol):
    """A tool that starts one process on each of several hosts by itself: pdsh, srun, mpirun."""

    name: str
    index_word: str
    """What to put into argv: `%n`-like, replaced by the tool, or `env:NAME`, a variable of the process."""

    @property
    def has_stdin(self) -> bool:
        """Whether the processes can read what is written; without it only EOF reaches them."""

    def tool_argv(self, command: GroupCommand) -> tuple[str, ...]:
        """The exact command line of the tool, for the dry run. Pure."""

    def tool_environment(self, command: GroupCommand) -> Mapping[str, str]:
        """The variables set for the tool beside those of this process, for the dry run."""

    async def start(self, command: GroupCommand) -> Group:
        """Run the tool. Raises BackendError where it is missing or refuses the command."""

    async def close(self) -> None:
        """End what is left of it."""
