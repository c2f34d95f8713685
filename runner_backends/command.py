"""What a backend is given and what it gives back."""

from __future__ import annotations

from collections.abc import AsyncIterator
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
