"""What pdsh, srun and mpirun have in common: one tool that runs a process on each of several hosts."""

from __future__ import annotations

import asyncio
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping

from dslaunch.runner_backends.child import Child, Children
from dslaunch.runner_backends.command import GroupCommand, SessionEnd
from dslaunch.runner_backends.demultiplex import Demultiplexer, Labels, Sorted
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


class _DeafTool(Child):
    """A tool that passes no stdin on. Its end is what closes the stdin of every process."""

    def close_stdin(self) -> None:
        super().close_stdin()
        self.terminate()


class ToolGroup:
    """A running tool. Every host's output has to be read: one that is not holds back all of them."""

    def __init__(self, child: Child, labels: Labels, num_hosts: int) -> None:
        self._child = child
        self._demultiplexer = Demultiplexer(labels)
        self._num_full = 0
        self._is_flowing = asyncio.Event()
        self._is_flowing.set()
        self._outputs = [OutputBuffer(self._pause, self._resume) for _ in range(num_hosts)]
        self._own = Tail()
        self._pump = asyncio.create_task(self._sort_output())

    def output(self, index: int) -> AsyncIterator[bytes]:
        """Whole lines, several at once, of the process on `hosts[index]`, until the tool ends."""
        return self._outputs[index].chunks()

    def write(self, data: bytes) -> None:
        """Queue bytes for every process's stdin. Only where the backend `has_stdin`; never blocks."""
        self._child.write(data)

    def close_stdin(self) -> None:
        """Let what is queued go out, then EOF to every process; a tool that passes no stdin on is ended."""
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
        return SessionEnd(end.returncode, (own + end.stderr)[-TAIL_BYTES:]) if own else end

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
            self._outputs[index].feed(b"".join(lines))
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
    has_stdin: bool

    def __init__(self, close_timeout_s: float = 10.0) -> None:
        self._children: Children[Child] = Children(Child if self.has_stdin else _DeafTool, close_timeout_s)
        self._groups: set[ToolGroup] = set()

    @abstractmethod
    def tool_argv(self, command: GroupCommand) -> tuple[str, ...]:
        """The exact command line of the tool, for the dry run. Pure."""

    @abstractmethod
    def tool_environment(self, command: GroupCommand) -> Mapping[str, str]:
        """The variables that are set for the tool beside our own."""

    @abstractmethod
    def labels(self, command: GroupCommand) -> Labels:
        """How the tool tells whose line it is."""

    @abstractmethod
    def check(self, command: GroupCommand) -> None:
        """Raises BackendError for a command that the tool is known not to carry as it is meant."""

    async def start(self, command: GroupCommand) -> ToolGroup:
        """Run the tool. Raises BackendError where it is missing or refuses the command."""
        self.check(command)
        argv = self.tool_argv(command)
        find_tool(argv[0])
        child = await self._children.start(
            argv if self.has_stdin else bound_to_us(argv), argv[0], self.tool_environment(command)
        )
        group = ToolGroup(child, self.labels(command), len(command.hosts))
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
