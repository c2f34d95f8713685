"""Answers those who ask about the job, or want something of it, over its socket.

One JSON object a line, both ways; text carries arbitrary bytes through `surrogateescape`. A request names
what to `do`; a refusal is an object with `error` and `hint`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from dslaunch.launcher.control.listener import Listener, Record, encode, line_record, shown_record
from dslaunch.launcher.control.ranks import KnownRanks
from dslaunch.launcher.control.registry import JobEntry, registered, socket_path
from dslaunch.launcher.plan import LaunchPlan
from dslaunch.launcher.streams import Lines
from dslaunch.launcher.supervise import Input
from dslaunch.launcher.whereabouts import Whereabouts

_KEPT_CONSOLE_BYTES = 64 << 10
"""What was shown before someone attached, to show again."""
_LAST_FLUSH_S = 2.0


class RefusedError(Exception):
    """A request that cannot be met."""

    def __init__(self, error: str, hint: str) -> None:
        super().__init__(error)
        self.record = {"error": error, "hint": hint}


class Controlled(Protocol):
    """What a desk asks of the attempt that runs."""

    def interrupt(self, number: int) -> None:
        """As if the launcher got that signal."""

    def signal_ranks(self, rank: int | None, number: int) -> bool:
        """Signal one rank, or all; whether that can be done at all."""

    async def take_census(self, *, with_flight: bool) -> Whereabouts:
        """Where the ranks are, and what their flight recorders hold."""


class Desk:
    """One for a job, over all its attempts."""

    def __init__(self, entry: JobEntry) -> None:
        self.entry = entry
        self._run: Controlled | None = None
        self._known: KnownRanks | None = None
        self._attempt = 0
        self._state = "starting"
        self._shown: deque[tuple[int, bytes]] = deque()
        self._shown_bytes = 0
        self._listeners: list[Listener] = []
        self._writers: set[asyncio.StreamWriter] = set()

    # -- what the job tells

    def begin_attempt(self, run: Controlled, plan: LaunchPlan, attempt: int) -> None:
        self._run, self._known, self._attempt, self._state = run, KnownRanks(plan), attempt, "starting"

    def on_input(self, what: Input) -> None:
        assert self._known is not None
        self._known.on_input(what)
        if self._state == "starting" and all(known.pid for known in self._known.by_rank.values()):
            self._state = "running"
            self._tell_console({"started": True})

    def stops(self) -> None:
        """The job is being ended."""
        self._state = "stopping"

    def on_lines(self, what: Lines) -> None:
        assert self._known is not None
        self._known.on_lines(what)
        for listener in self._listeners:
            if listener.ranks is not None and what.rank in listener.ranks:
                for line in what.lines:
                    listener.tell(line_record(what.rank, what.stream, line))

    def on_console(self, fd: int, data: bytes) -> None:
        """Something is shown."""
        self._shown.append((fd, data))
        self._shown_bytes += len(data)
        while self._shown_bytes > _KEPT_CONSOLE_BYTES and len(self._shown) > 1:
            self._shown_bytes -= len(self._shown.popleft()[1])
        self._tell_console(shown_record(fd, data))

    def _tell_console(self, record: Record) -> None:
        for listener in self._listeners:
            if listener.ranks is None:
                listener.tell(record)

    @asynccontextmanager
    async def serving(self, on_ready: Callable[[], None]) -> AsyncIterator[None]:
        """Known and listening for as long as this lasts. Raises OSError."""
        with registered(self.entry) as registration:
            before = os.umask(0o177)
            try:
                server = await asyncio.start_unix_server(self._serve, socket_path(self.entry.id))
            finally:
                os.umask(before)
            registration.publish()
            on_ready()
            try:
                yield
            finally:
                server.close()
                for writer in self._writers:
                    writer.close()

    async def ends(self, exit_code: int) -> None:
        """Tell who listens, and let them read it, but not for ever."""
        self._state = "ended"
        for listener in self._listeners:
            listener.tell({"exit_code": exit_code})
        drains = [asyncio.create_task(writer.drain()) for writer in self._writers]
        if drains:
            await asyncio.wait(drains, timeout=_LAST_FLUSH_S)

    # -- who asks

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        listener: Listener | None = None
        try:
            _check_user(writer)
            async for line in reader:
                request = json.loads(line)
                try:
                    listener = await self._answer(request, writer) or listener
                except RefusedError as refused:
                    writer.write(encode(refused.record))
                await writer.drain()
        except (OSError, ValueError, LookupError, TypeError, asyncio.CancelledError):
            pass  # it went away, or is no client of ours
        finally:
            if listener is not None:
                self._listeners.remove(listener)
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: dict[str, object], writer: asyncio.StreamWriter) -> Listener | None:
        """Do what is asked; a listener where the asker stays for more. Raises RefusedError."""
        match request:
            case {"do": "state"}:
                writer.write(encode(self._record()))
            case {"do": "stack", "flight": bool(with_flight)}:
                writer.write(encode(await self._census(with_flight=with_flight)))
            case {"do": "signal", "signal": int(number), "rank": int() | None as rank}:
                self._signal(number, rank)
                writer.write(encode({"ok": True}))
            case {"do": "interrupt", "signal": int(number)}:
                if self._run is None:
                    os.kill(os.getpid(), signal.SIGINT)  # other nodes are waited for, or hosts looked over
                else:
                    self._run.interrupt(number)
                writer.write(encode({"ok": True}))
            case {"do": "logs", "ranks": list() | None as ranks, "num_lines": int(num_lines)}:
                return self._listen_to_ranks(writer, ranks, num_lines, follow=request.get("follow") is True)
            case {"do": "attach"}:
                return self._listen_to_console(writer)
            case _:
                raise RefusedError("the job does not know that request", "use the dslaunchctl of its version")
        return None

    @property
    def _running(self) -> Controlled:
        if self._run is None:
            raise RefusedError("the job has not begun", "try again")
        return self._run

    def _record(self) -> Record:
        ranks = [] if self._known is None else self._known.by_rank.values()
        return {
            "state": self._state,
            "attempt": self._attempt,
            "ranks": [known.as_record() for known in ranks],
        }

    async def _census(self, *, with_flight: bool) -> Record:
        if self._state == "starting":
            raise RefusedError("the ranks have not started", "try again")
        seen = await self._running.take_census(with_flight=with_flight)
        return {
            "lines": seen.lines() + (await asyncio.to_thread(seen.flight_lines) if with_flight else []),
            "stacks": [{**stack._asdict(), "host": seen.hosts[stack.rank]} for stack in seen.stacks],
        }

    def _signal(self, number: int, rank: int | None) -> None:
        if number not in set(signal.Signals):
            raise RefusedError(f"there is no signal {number}", "see kill -l")
        self._check_ranks([] if rank is None else [rank])
        if not self._running.signal_ranks(rank, number):
            raise RefusedError("this backend carries no such signal", "SIGUSR1 and SIGUSR2, without --rank")

    def _check_ranks(self, ranks: list[int]) -> None:
        there = {} if self._known is None else self._known.by_rank
        unknown = [rank for rank in ranks if rank not in there]
        if unknown:
            raise RefusedError(f"the job has no rank {unknown[0]} here", "see dslaunchctl ps JOB")

    def _listen_to_ranks(
        self, writer: asyncio.StreamWriter, ranks: list[int] | None, num_lines: int, *, follow: bool
    ) -> Listener | None:
        there = {} if self._known is None else self._known.by_rank
        chosen = sorted(there) if ranks is None else ranks
        self._check_ranks(chosen)
        for rank in chosen:
            kept = list(there[rank].lines)
            for stream, line in kept[max(0, len(kept) - num_lines) :]:
                writer.write(encode(line_record(rank, stream, line)))
        if not follow:
            writer.write(encode({"ok": True}))
            return None
        return self._listen(Listener(writer, frozenset(chosen)))

    def _listen_to_console(self, writer: asyncio.StreamWriter) -> Listener:
        for fd, data in self._shown:
            writer.write(encode(shown_record(fd, data)))
        if self._state != "starting":
            writer.write(encode({"started": True}))
        return self._listen(Listener(writer, None))

    def _listen(self, listener: Listener) -> Listener:
        self._listeners.append(listener)
        return listener


def _check_user(writer: asyncio.StreamWriter) -> None:
    """The socket is this user's alone; that the other end is, too, or root. Raises OSError."""
    connection: socket.socket = writer.get_extra_info("socket")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid not in (0, os.getuid()):
        raise PermissionError(f"user {uid} is not this job's")
