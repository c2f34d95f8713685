"""What pdsh, srun and mpirun have in common: one tool that runs a process on each of several hosts."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from dslaunch.hostfile import Host
from dslaunch.runner_backends.child import STDERR, Child, Children
from dslaunch.runner_backends.command import GroupCommand, SessionEnd
from dslaunch.runner_backends.demultiplex import Demultiplexer, Sorted
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.farewell import FAREWELL
from dslaunch.runner_backends.leftovers import VARIABLE, kill_leftovers
from dslaunch.runner_backends.output import OutputBuffer
from dslaunch.runner_backends.programs import find_tool
from dslaunch.runner_backends.tail import TAIL_BYTES, Tail

# Becomes the tool, once the kernel has promised to SIGKILL it when we die. The first argument is our pid.
_BIND = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"
    "if os.getppid() == int(sys.argv[1]): os.execvp(sys.argv[2], sys.argv[2:])"
)


def bound_to_us(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The argv that runs `argv`, under the same pid, in a process that does not outlive this one."""
    return (sys.executable, "-I", "-S", "-c", _BIND, str(os.getpid()), *argv)


def refuse_logins(backend: str, hosts: tuple[Host, ...]) -> None:
    """Raises BackendError for hosts with a user or a port, where the tool takes none."""
    for host in hosts:
        if host.user is not None or host.port is not None:
            what = "user" if host.user is not None else "port"
            hint = "leave it out of the hostfile; where ssh is used, ssh_config can set it"
            raise BackendError(backend, f"takes no {what}, but {host.name} has one", hint)


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a tool says of the process on `hosts[index]`; `is_over` where that process is gone with it."""

    index: int
    words: str
    is_over: bool


class _Tool(Child):
    """A tool whose complaints are read as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.find_complaint: Callable[[bytes], Complaint | None] = lambda line: None
        self.complain: Callable[[Complaint], None] = lambda complaint: None
        self.mark = ""
        self._stderr_rest = b""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        super().pipe_data_received(fd, data)
        if fd == STDERR:
            *lines, self._stderr_rest = (self._stderr_rest + data).split(b"\n")
            for complaint in map(self.find_complaint, lines):
                if complaint is not None:
                    self.complain(complaint)

    def process_exited(self) -> None:
        super().process_exited()
        if self.mark:
            kill_leftovers(self.mark)


class _DeafTool(_Tool):
    """A tool that does not pass EOF on. Its end is what tells every process to end."""

    def close_stdin(self) -> None:
        super().close_stdin()
        self.terminate()


class ToolGroup:
    """A running tool. Every host's output has to be read: one that is not holds back all of them."""

    def __init__(self, child: Child, demultiplexer: Demultiplexer, num_hosts: int) -> None:
        self._child = child
        self._demultiplexer = demultiplexer
        self._num_full = 0
        self._is_flowing = asyncio.Event()
        self._is_flowing.set()
        self._outputs = [OutputBuffer(self._pause, self._resume) for _ in range(num_hosts)]
        self._own = Tail()
        self._exit_codes: dict[int, int] = {}
        self._reasons: dict[int, str] = {}
        self._pump = asyncio.create_task(self._sort_output())

    def output(self, index: int) -> AsyncIterator[bytes]:
        """Whole lines, several at once, of the process on `hosts[index]`, until the tool ends."""
        return self._outputs[index].chunks()

    def write(self, data: bytes) -> None:
        """Queue bytes for every process's stdin. Only where the backend `has_stdin`; never blocks."""
        self._child.write(data)

    def close_stdin(self) -> None:
        """Let what is queued go out, then EOF to every process; a tool that does not pass it on is ended."""
        self._child.close_stdin()

    def kill(self) -> None:
        """SIGKILL the tool."""
        self._child.kill()
        self.discard_output()

    async def wait(self) -> SessionEnd:
        """How the tool ended, once every output is drained; its own words stand in `stderr`."""
        end = await self._child.wait()
        await asyncio.shield(self._pump)
        own = self._own.text()
        all_told = len(self._exit_codes) == len(self._outputs)
        returncode = max(self._exit_codes.values()) if all_told else end.returncode
        return SessionEnd(returncode, (own + end.stderr)[-TAIL_BYTES:])

    def reason(self, index: int) -> str:
        """The tool's last words about the process on `hosts[index]`; "" where it said nothing."""
        return self._reasons.get(index, "")

    def returncode(self, index: int) -> int | None:
        """From the process's farewell, where it says one: a shell's 128 + n is signal n."""
        code = self._exit_codes.get(index)
        return 128 - code if code is not None and code > 128 else code

    def take(self, complaint: Complaint) -> None:
        """The first words tell why, those that follow only that it is over."""
        self._reasons.setdefault(complaint.index, complaint.words)
        if complaint.is_over:
            self._outputs[complaint.index].end()

    def when_over(self, act: Callable[[ToolGroup], None]) -> None:
        """Have `act` called once all output is told apart."""
        self._pump.add_done_callback(lambda _: act(self))

    def discard_output(self) -> None:
        """Read and forget all output from here on."""
        self._child.discard_output()
        for output in self._outputs:
            output.discard()

    async def _sort_output(self) -> None:
        async for chunk in self._child.output():
            self._deal(self._demultiplexer.feed(chunk))
            await self._is_flowing.wait()
        self._deal(self._demultiplexer.end())
        for output in self._outputs:
            output.end()

    def _deal(self, found: Sorted) -> None:
        for index, lines in found.lines.items():
            farewell = FAREWELL.search(lines[-1])
            if farewell is None:
                self._outputs[index].feed(b"".join(lines))
                continue
            self._outputs[index].feed(b"".join([*lines[:-1], lines[-1][: farewell.start()]]))
            self._outputs[index].end()
            self._exit_codes[index] = int(farewell[1])
            if len(self._exit_codes) == len(self._outputs):
                self._child.close_stdin()
        for line in found.own:
            self._own.feed(line)

    def _pause(self) -> None:
        self._num_full += 1
        self._is_flowing.clear()

    def _resume(self) -> None:
        self._num_full -= 1
        if not self._num_full:
            self._is_flowing.set()


class ToolBackend(ABC):
    """A backend that is one command line; what its tool makes of it is said by the subclass."""

    name: str
    index_word: str

    leaves_processes = False
    """Whether what it started here may outlive it, and is killed; srun's child tells Slurm of its end."""

    def __init__(self, close_timeout_s: float = 10.0) -> None:
        self._children = Children(close_timeout_s)
        self._groups: set[ToolGroup] = set()

    @property
    @abstractmethod
    def has_stdin(self) -> bool:
        """Whether what is written reaches every process, as it is and at once."""

    @property
    @abstractmethod
    def passes_eof(self) -> bool:
        """Whether EOF reaches every process. Where not, the tool is ended with SIGTERM, and ends with us."""

    @abstractmethod
    def tool_argv(self, command: GroupCommand) -> tuple[str, ...]:
        """The exact command line of the tool, for the dry run. Pure."""

    @abstractmethod
    def tool_environment(self, command: GroupCommand) -> Mapping[str, str]:
        """The variables that are set for the tool beside our own."""

    @abstractmethod
    def demultiplexer(self, command: GroupCommand) -> Demultiplexer:
        """What tells the output of the processes apart."""

    @abstractmethod
    def check(self, command: GroupCommand) -> None:
        """Raises BackendError for a command that the tool is known not to carry as it is meant."""

    def complaints(self, command: GroupCommand) -> Callable[[bytes], Complaint | None]:
        """What finds in a line of the tool's stderr what it says of one process."""
        return lambda line: None

    async def start(self, command: GroupCommand) -> ToolGroup:
        """Run the tool. Raises BackendError where it is missing or refuses the command."""
        self.check(command)
        argv = self.tool_argv(command)
        find_tool(argv[0])
        kind, argv_here = (_Tool, argv) if self.passes_eof else (_DeafTool, bound_to_us(argv))
        mark = secrets.token_hex(8) if self.leaves_processes else ""
        environment = {**self.tool_environment(command), **({VARIABLE: mark} if mark else {})}
        child = await self._children.start(kind, argv_here, argv[0], environment)
        group = ToolGroup(child, self.demultiplexer(command), len(command.hosts))
        child.find_complaint, child.complain = self.complaints(command), group.take
        child.mark = mark
        self._groups.add(group)
        group.when_over(self._groups.discard)
        if command.stdin:
            group.write(command.stdin)
        return group

    async def close(self) -> None:
        """EOF to what still runs, and SIGKILL to a tool that has not ended `close_timeout_s` later."""
        groups = list(self._groups)
        for group in groups:
            group.discard_output()
        await self._children.close()
        for group in groups:
            await group.wait()
