"""Child processes of ours, each with three pipes: what every backend of a command-line tool stands on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypeVar, cast

from dslaunch.runner_backends.command import SessionEnd
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.output import OutputBuffer
from dslaunch.runner_backends.tail import Tail

STDIN, STDOUT, STDERR = 0, 1, 2

BAD_CHARACTER = "an argument holds a character that no command line can carry, such as NUL: remove it"

# A process may leave its pipes to a descendant. When it ends, its stdout is waited for, its stderr this long.
STDERR_GRACE_S = 0.5


class Child(asyncio.SubprocessProtocol):
    """A child process of ours, in a session of its own: a terminal's Ctrl-C does not reach it."""

    def __init__(self) -> None:
        self._transport: asyncio.SubprocessTransport | None = None
        self._output = OutputBuffer(self._pause_stdout, self._resume_stdout)
        self._stderr = Tail()
        self._open_pipes = {STDIN, STDOUT, STDERR}
        self._stdin_closed = False
        self._killed = False
        self._returncode: int | None = None
        self._ended = asyncio.Event()
        self._pidfd = -1

    def output(self) -> AsyncIterator[bytes]:
        """Chunks of stdout as they come, until every process that holds it has closed it."""
        return self._output.chunks()

    def write(self, data: bytes) -> None:
        """Queue bytes for stdin. Never blocks; after the process is gone it does nothing."""
        pipe = self._stdin()
        if pipe is not None and not self._stdin_closed:
            pipe.write(data)

    def close_stdin(self) -> None:
        """Let what is queued go out, then send EOF."""
        self._stdin_closed = True
        pipe = self._stdin()
        if pipe is not None:
            pipe.close()

    def kill(self) -> None:
        """SIGKILL the process, not its descendants. Output they still hold open is no longer waited for."""
        self._killed = True
        self._signal(signal.SIGKILL)
        if self._returncode is not None:
            self._close_pipe(STDOUT)

    def terminate(self) -> None:
        """SIGTERM the process. What it has said until then is still received."""
        self._signal(signal.SIGTERM)

    async def wait(self) -> SessionEnd:
        """The end, once the process is gone and its stdout has been received."""
        await self._ended.wait()
        return SessionEnd(self._returncode, self._stderr.text())

    def discard_output(self) -> None:
        """Read and forget stdout from here on, so that a full pipe cannot keep the process from ending."""
        self._output.discard()

    # The event loop calls the rest.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(self._transport.get_pid())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDOUT:
            self._output.feed(data)
        else:
            self._stderr.feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if fd == STDOUT:
            self._output.end()
        self._end_if_over()

    def process_exited(self) -> None:
        assert self._transport is not None
        self._returncode = self._transport.get_returncode()
        if self._killed:
            self._close_pipe(STDOUT)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._returncode is None or STDOUT in self._open_pipes or self._ended.is_set():
            return
        if STDERR in self._open_pipes and not self._killed:
            asyncio.get_running_loop().call_later(STDERR_GRACE_S, self._end)
        else:
            self._end()

    def _signal(self, number: int) -> None:
        """By pidfd: Popen's own way reaps a child that has just ended, and asyncio then complains."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _end(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self._transport is not None:
            self._transport.close()
        self._ended.set()

    def _stdin(self) -> asyncio.WriteTransport | None:
        if self._transport is None or STDIN not in self._open_pipes or self._returncode is not None:
            return None
        return cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(STDIN))

    def _stdout(self) -> asyncio.ReadTransport | None:
        if self._transport is None or STDOUT not in self._open_pipes:
            return None
        return cast("asyncio.ReadTransport | None", self._transport.get_pipe_transport(STDOUT))

    def _pause_stdout(self) -> None:
        pipe = self._stdout()
        if pipe is not None:
            pipe.pause_reading()

    def _resume_stdout(self) -> None:
        pipe = self._stdout()
        if pipe is not None and not pipe.is_closing():
            pipe.resume_reading()

    def _close_pipe(self, fd: int) -> None:
        if self._transport is not None and fd in self._open_pipes:
            pipe = self._transport.get_pipe_transport(fd)
            if pipe is not None:
                pipe.close()


ChildT = TypeVar("ChildT", bound=Child)


class Children:
    """Every child of one backend, from its start until it has been waited for."""

    def __init__(self, close_timeout_s: float = 10.0) -> None:
        self._close_timeout_s = close_timeout_s
        self._children: set[Child] = set()
        self._reapers: set[asyncio.Task[None]] = set()

    async def start(
        self,
        kind: type[ChildT],
        argv: Sequence[str],
        host_name: str,
        environment: Mapping[str, str] | None = None,
    ) -> ChildT:
        """Start a program in a session of its own, with `environment` beside our own variables.

        Raises BackendError, on behalf of the host of that name, when the program cannot be run.
        """
        loop = asyncio.get_running_loop()
        whole = {**os.environ, **environment} if environment else None
        try:
            words = [os.fsencode(word) for word in argv]
            _, child = await loop.subprocess_exec(kind, *words, start_new_session=True, env=whole)
        except (OSError, ValueError) as error:
            raise _start_error(host_name, argv[0], error) from error
        self._children.add(child)
        reaper = asyncio.create_task(self._forget_when_over(child))
        self._reapers.add(reaper)
        reaper.add_done_callback(self._reapers.discard)
        return child

    async def close(self) -> None:
        """Send EOF to what still runs, and SIGKILL it when it has not ended after `close_timeout_s`."""
        for child in self._children:
            child.discard_output()
            child.close_stdin()
        if self._reapers:
            _, late = await asyncio.wait(self._reapers, timeout=self._close_timeout_s)
            for child in self._children:
                child.kill()
            if late:
                await asyncio.wait(late)

    async def _forget_when_over(self, child: Child) -> None:
        await child.wait()
        self._children.discard(child)


def _start_error(host_name: str, program: str, error: OSError | ValueError) -> BackendError:
    if isinstance(error, ValueError):
        return BackendError(host_name, f"cannot run {program!r}: {error}", BAD_CHARACTER)
    match error.errno:
        case errno.ENOENT if os.path.exists(program):
            what, hint = (
                "its interpreter was not found",
                f"look at the first line of {program}, after the #!",
            )
        case errno.ENOENT | errno.ENOTDIR:
            what, hint = "no such program", "check the spelling, install it, or give its full path"
        case errno.EACCES | errno.EPERM:
            what, hint = (
                "permission denied",
                f"make it executable (chmod +x {program}), or run it through its interpreter",
            )
        case errno.ENOEXEC:
            what, hint = (
                "not in an executable format",
                "give it a #! line, or build it for this machine",
            )
        case errno.E2BIG:
            what, hint = "the argument list is too long", "put the arguments in a file"
        case errno.EAGAIN | errno.ENOMEM | errno.EMFILE | errno.ENFILE:
            what, hint = (
                f"this machine is out of resources ({os.strerror(error.errno).lower()})",
                "look at ulimit -a and free -h",
            )
        case _:
            what, hint = str(error.strerror or error).lower(), f"try to run {program} by hand"
    return BackendError(host_name, f"cannot run {program!r}: {what}", hint)
