"""One remote process over one connection."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable

import asyncssh
from asyncssh.constants import EXTENDED_DATA_STDERR

from dslaunch.runner_backends.command import SessionEnd
from dslaunch.runner_backends.output import OutputBuffer
from dslaunch.runner_backends.ssh_connector import Link
from dslaunch.runner_backends.tail import Tail

# The protocol names signals, and sshd has names for the common ones only.
UNNAMED_SIGNAL = 99


class SshSession(asyncssh.SSHClientSession[bytes]):
    """A remote process. The connection is its own and is closed when it ends."""

    def __init__(self, link: Link, on_end: Callable[[SshSession], None]) -> None:
        self.link = link
        self._on_end = on_end
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._output = OutputBuffer(self._pause, self._resume)
        self._stderr = Tail()
        self._returncode: int | None = None
        self._ended = asyncio.Event()

    def output(self) -> AsyncIterator[bytes]:
        """Chunks of stdout as they come, until it ends or the link is lost."""
        return self._output.chunks()

    def write(self, data: bytes) -> None:
        """Queue bytes for stdin. Never blocks; after the process or the link is gone it does nothing."""
        if self._channel is not None and data:
            with contextlib.suppress(OSError):
                self._channel.write(data)

    def close_stdin(self) -> None:
        """Let what is queued go out, then send EOF."""
        if self._channel is not None:
            self._channel.write_eof()

    def kill(self) -> None:
        """Drop the link at once. The remote process sees EOF on its stdin, and nothing else."""
        self.link.connection.abort()

    async def wait(self) -> SessionEnd:
        """The end, once stdout has been received."""
        await self._ended.wait()
        return SessionEnd(self._returncode, self._stderr.text())

    # asyncssh calls the rest.

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype == EXTENDED_DATA_STDERR:
            self._stderr.feed(data)
        else:
            self._output.feed(data)

    def eof_received(self) -> bool:
        self._output.end()
        return True

    def exit_status_received(self, status: int) -> None:
        self._returncode = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self._returncode = -_signal_number(signal)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._returncode is None and exc is not None:
            said = "" if self.link.proxy is None else self.link.proxy.stderr.text()
            why = str(exc).lower()
            why = why if why == "connection lost" else f"connection lost: {why}"
            self._stderr.feed(f"{said}{why}\n".encode())
        self._channel = None
        self._output.end()
        self._ended.set()
        self._on_end(self)

    def _pause(self) -> None:
        if self._channel is not None:
            self._channel.pause_reading()

    def _resume(self) -> None:
        if self._channel is not None:
            self._channel.resume_reading()


def _signal_number(name: str) -> int:
    try:
        return signal.Signals[f"SIG{name}"]
    except KeyError:
        return UNNAMED_SIGNAL
