"""`dslaunchctl exec`: one command on every host at once, and nothing left of it afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dslaunch.hostfile import Host, Topology
from dslaunch.launcher.console import Console
from dslaunch.launcher.ctl.answers import (
    Answer,
    Exited,
    Lost,
    Outcome,
    Unreachable,
    complaints,
    exit_code,
    folded,
)
from dslaunch.launcher.plan import Resolved
from dslaunch.launcher.streams import LineStream
from dslaunch.runner_backends.command import Backend, NodeCommand, Session
from dslaunch.runner_backends.errors import BackendError

MAX_KEPT_BYTES = 4 << 20
"""Of one host's output, for folding."""
_END_S = 6.0
"""After which hosts that were told to end are given up: more than the 3 s from SIGTERM to SIGKILL there."""
_INTERRUPTED_FLUSH_S = 5.0

WRAPPER = (
    "exec 3<&0 </dev/null; "
    "(while read -r line; do :; done; kill -0 $$ || exit; "
    'trap "" TERM; kill -TERM 0; sleep 3; kill -KILL 0) <&3 >/dev/null 2>&1 & '
    'trap : TERM; (exec "$@") 2>&1 3<&-'
)
"""For sh: the command, and beside it a watcher that ends the process group when stdin does.

So the command ends with the connection, however that ends. The watcher does nothing once the shell ($$) is
gone: what a command leaves running on purpose stays. One line without single quotes, backslashes or `!`:
single-quoted, it is the same to every login shell.
"""


class Execution:
    """A command on its way on several hosts; `receive` gets each host's output as it comes."""

    def __init__(self, backend: Backend, receive: Callable[[str, bytes], None]) -> None:
        self._backend = backend
        self._receive = receive
        self._tasks: dict[str, asyncio.Task[Outcome]] = {}
        self._sessions: dict[str, Session] = {}
        self._stopped = False

    async def run(self, hosts: Topology, argv: Sequence[str]) -> list[Outcome]:
        """How it ended on each host, in their order."""
        for host in hosts:
            self._tasks[host.name] = asyncio.create_task(self._run_on(host, argv))
        return await asyncio.gather(*self._tasks.values())

    def stop(self) -> None:
        """End the command everywhere, hosts that do not follow after 6 s, or when asked again, aside."""
        if self._stopped:
            self._kill()
            return
        self._stopped = True
        for name, task in self._tasks.items():
            if name in self._sessions:
                self._sessions[name].close_stdin()
            else:
                task.cancel()
        asyncio.get_running_loop().call_later(_END_S, self._kill)

    def _kill(self) -> None:
        for session in self._sessions.values():
            session.kill()

    async def _run_on(self, host: Host, argv: Sequence[str]) -> Outcome:
        try:
            session = await self._backend.start(NodeCommand(host, ("sh", "-c", WRAPPER, "sh", *argv), b""))
        except BackendError as error:
            return Unreachable(error.what, error.hint)
        except asyncio.CancelledError:
            return Unreachable("interrupted before the command was started", "run it again")
        self._sessions[host.name] = session
        async for chunk in session.output():
            self._receive(host.name, chunk)
        end = await session.wait()
        if end.returncode is None:
            last_words = end.stderr.strip().splitlines()
            return Lost(last_words[-1] if last_words else "connection lost")
        return Exited(end.returncode if end.returncode >= 0 else 128 - end.returncode)


class _Kept:
    """What hosts have written, up to a limit each."""

    def __init__(self) -> None:
        self._output: dict[str, bytearray] = {}
        self._num_cut_bytes: dict[str, int] = {}

    def receive(self, host: str, data: bytes) -> None:
        output = self._output.setdefault(host, bytearray())
        kept = data[: MAX_KEPT_BYTES - len(output)]
        output += kept
        self._num_cut_bytes[host] = self._num_cut_bytes.get(host, 0) + len(data) - len(kept)

    def answer(self, host: str, outcome: Outcome) -> Answer:
        return Answer(host, outcome, bytes(self._output.get(host, b"")), self._num_cut_bytes.get(host, 0))


class _Streamed:
    """What hosts write, line by line as it comes, behind their names."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._streams: dict[str, LineStream] = {}

    def receive(self, host: str, data: bytes) -> None:
        self._show(host, self._streams.setdefault(host, LineStream()).feed(data))

    def answer(self, host: str, outcome: Outcome) -> Answer:
        """Shows the unfinished last line."""
        self._show(host, self._streams.setdefault(host, LineStream()).end())
        return Answer(host, outcome)

    def _show(self, host: str, lines: Iterable[bytes]) -> None:
        text = b"".join(b"%s: %s\n" % (host.encode(), line) for line in lines)
        if text:
            self._console.write_lines(1, text)


def execute_on_hosts(resolved: Resolved, argv: Sequence[str], *, fold: bool) -> int:
    """Run it, show the answers, give the exit code."""
    console = Console()
    shown: _Kept | _Streamed = _Kept() if fold else _Streamed(console)
    interrupted: list[int] = []

    async def carry_out() -> list[Outcome]:
        backend = _backend(resolved)
        execution = Execution(backend, shown.receive)

        def interrupt(number: int) -> None:
            interrupted.append(number)
            execution.stop()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, interrupt, number)
        try:
            return await execution.run(resolved.topology, argv)
        finally:
            await backend.close()

    outcomes = asyncio.run(carry_out())
    answers = [shown.answer(host.name, how) for host, how in zip(resolved.topology, outcomes, strict=True)]
    if fold:
        console.write(1, folded(answers))
    for line in complaints(answers, with_codes=not fold):
        console.write(2, os.fsencode(line) + b"\n")
    console.close(timeout_s=_INTERRUPTED_FLUSH_S if interrupted else None)
    return 128 + interrupted[0] if interrupted else exit_code(answers)


def _backend(resolved: Resolved) -> Backend:
    """asyncssh is imported only where it is needed: it is slow to load."""
    if resolved.backend == "local":
        from dslaunch.runner_backends.local import LocalBackend

        return LocalBackend()
    from dslaunch.runner_backends.ssh import SshBackend

    config = resolved.request.ssh_config
    return SshBackend(None if config is None else Path(config))
