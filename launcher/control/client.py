"""The asking end of a job's socket."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from types import FrameType, TracebackType

from dslaunch.launcher.control.registry import JobEntry, socket_path
from dslaunch.launcher.errors import EXIT_NODE_LOST, UsageError

_REPLY_S = 20.0
"""A census takes 2 s, with the dumps of flight recorders up to 11, and a launcher under load answers late."""

Reply = dict[str, object]


class JobConnection:
    """A connection to a running job. A refusal of the job is a UsageError."""

    def __init__(self, entry: JobEntry) -> None:
        """Raises UsageError where the job has just ended."""
        self._entry = entry
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_REPLY_S)
        try:
            self._socket.connect(os.fspath(socket_path(entry.id)))
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"job {entry.id} ({entry.name}) does not answer: {error.strerror or error}",
                "it may just have begun or ended; see dslaunchctl ps",
            ) from error
        self._rest = b""

    def __enter__(self) -> JobConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, **request: object) -> None:
        """Raises OSError where the job has gone."""
        self._socket.sendall(json.dumps(request).encode("ascii") + b"\n")

    def ask(self, **request: object) -> Reply:
        """One reply."""
        try:
            self.send(**request)
            reply = next(self._replies(), None)
        except OSError as error:
            raise UsageError(f"job {self._entry.id} does not answer: {error}", "try again") from error
        if reply is None:
            raise UsageError(f"job {self._entry.id} has ended", "see dslaunchctl ps")
        return reply

    def listen(self) -> Iterator[Reply]:
        """Replies until the other end closes, however long that takes."""
        self._socket.settimeout(None)
        try:
            yield from self._replies()
        except ConnectionResetError:
            return

    def _replies(self) -> Iterator[Reply]:
        while True:
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                reply: Reply = json.loads(line)
                if "error" in reply:
                    raise UsageError(str(reply["error"]), str(reply.get("hint", "")))
                yield reply
            data = self._socket.recv(1 << 16)
            if not data:
                return
            self._rest += data


class _LeftError(Exception):
    """The user leaves the job to itself."""


def attach(entry: JobEntry, *, until_started: bool = False) -> int | None:
    """Show what the job shows, until its end; its exit code, or None where the user has left.

    Ctrl-C means what it means to `dslaunch`: end the job, a second time kill it, a third do not wait. Ctrl-\\
    leaves it alone. `until_started` leaves when every rank runs.
    """
    with JobConnection(entry) as job:

        def interrupt(number: int, frame: FrameType | None) -> None:
            job.send(do="interrupt", signal=number)

        def leave(number: int, frame: FrameType | None) -> None:
            raise _LeftError

        job.send(do="attach")
        before = {signal.SIGINT: signal.signal(signal.SIGINT, interrupt)}
        before[signal.SIGQUIT] = signal.signal(signal.SIGQUIT, leave)
        try:
            for reply in job.listen():
                match reply:
                    case {"fd": int(fd), "data": str(data)}:
                        _write(fd, data.encode("utf-8", "surrogateescape"))
                    case {"missed": int(missed)}:
                        _write(
                            2,
                            f"dslaunchctl: {missed} pieces were not shown: too slow\n".encode(),
                        )
                    case {"exit_code": int(code)}:
                        return code
                    case {"started": True} if until_started:
                        return None
        except _LeftError:
            return None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    _write(2, f"dslaunchctl: the launcher of job {entry.id} is gone\n".encode())
    return EXIT_NODE_LOST


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
