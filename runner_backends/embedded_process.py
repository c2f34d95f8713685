"""One command of an embedded host: a child process between the pipes and whoever listens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Protocol, cast


class Listener(Protocol):
    """The session that a process belongs to."""

    def output(self, fd: int, data: bytes) -> None:
        """The process has written."""

    def hold_input(self, is_held: bool) -> None:
        """The process reads slower than it is written to, or has caught up."""

    def exited(self, returncode: int) -> None:
        """The process is gone, and all it wrote has been handed on."""


class HostProcess(asyncio.SubprocessProtocol):
    """The child of one session. It outlives the session when it ignores EOF."""

    def __init__(self, session: Listener) -> None:
        self._session = session
        self._transport: asyncio.SubprocessTransport | None = None
        self._open_pipes = {0, 1, 2}
        self._returncode: int | None = None
        self.ended = asyncio.Event()
        self.on_exit: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        pipe = self._pipe(0)
        if pipe is not None and not pipe.is_closing():
            cast(asyncio.WriteTransport, pipe).write(data)

    def close_stdin(self) -> None:
        pipe = self._pipe(0)
        if pipe is not None:
            pipe.close()

    def pause_output(self) -> None:
        for fd in (1, 2):
            pipe = self._pipe(fd)
            if pipe is not None and not pipe.is_closing():
                cast(asyncio.ReadTransport, pipe).pause_reading()

    def resume_output(self) -> None:
        for fd in (1, 2):
            pipe = self._pipe(fd)
            if pipe is not None and not pipe.is_closing():
                cast(asyncio.ReadTransport, pipe).resume_reading()

    def hang_up(self) -> None:
        """Close all three pipes at once; what was queued for stdin is dropped."""
        stdin = cast("asyncio.WriteTransport | None", self._pipe(0))
        # A second close of an empty pipe trips over the first (asyncio calls connection_lost twice).
        if stdin is not None and (stdin.get_write_buffer_size() or not stdin.is_closing()):
            stdin.abort()
        for fd in (1, 2):
            pipe = self._pipe(fd)
            if pipe is not None:
                pipe.close()

    def kill(self) -> None:
        """SIGKILL the process group."""
        if self._transport is not None and self._returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._session.output(fd, data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        self._report_if_over()

    def pause_writing(self) -> None:
        self._session.hold_input(True)

    def resume_writing(self) -> None:
        # Later: the transport is in the middle of a write, and would lose what comes in now.
        asyncio.get_running_loop().call_soon(self._session.hold_input, False)

    def process_exited(self) -> None:
        assert self._transport is not None
        self._returncode = self._transport.get_returncode()
        self.on_exit()
        self.ended.set()
        self._report_if_over()

    def _report_if_over(self) -> None:
        if self._returncode is not None and not self._open_pipes & {1, 2}:
            if self._transport is not None:
                self._transport.close()
            self._session.exited(self._returncode)

    def _pipe(self, fd: int) -> asyncio.BaseTransport | None:
        if self._transport is None or fd not in self._open_pipes:
            return None
        return self._transport.get_pipe_transport(fd)
