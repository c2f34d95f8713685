"""Where the node's ranks are: all are asked at once, and what they say within the time is told.

A rank that is stopped or in uninterruptible sleep cannot answer; py-spy, where it is installed, reads the
stacks of those and of interpreters that were started without our hook.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable

from dslaunch.launcher.agent import hook
from dslaunch.launcher.agent.family import descendants
from dslaunch.launcher.agent.kernel_state import kernel_state
from dslaunch.launcher.agent.process import RankProcess
from dslaunch.launcher.wire import Stack

POLL_S = 0.01
_STABLE_S = 0.03
"""A dump is written in pieces: it is whole when nothing was added for so long."""


class _Asked:
    """One rank: whom of its processes we ask, and where the answer is written."""

    def __init__(self, process: RankProcess, folder: hook.HookFolder | None) -> None:
        self.rank = process.rank
        family = (process.pid, *descendants(process.pid))
        self.pid = next((pid for pid in family if _is_python(pid)), process.pid)
        self.path = ""
        self._start = self._size = 0
        self._grew_at = 0.0
        self._py_spy: subprocess.Popen[bytes] | None = None
        if folder is not None and not any(self._ask(pid, folder.stack_file(pid)) for pid in family):
            self._ask_py_spy(process.program, folder)

    def _ask(self, pid: int, stack_file: str) -> bool:
        """Whether the process will answer, by all that is known."""
        if not hook.can_be_asked(pid, stack_file) or not kernel_state(pid).can_run:
            return False
        self.pid, self.path = pid, stack_file
        with open(stack_file, "rb") as file:
            self._start = self._size = len(file.readline())  # it names the main thread
        os.truncate(stack_file, self._start)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, hook.DUMP_SIGNAL)
        return True

    def _ask_py_spy(self, interpreter: str, folder: hook.HookFolder) -> None:
        program = _py_spy(interpreter)
        if program is None or not _is_python(self.pid):
            return
        self.path = os.path.join(folder.path, f"{self.pid}.py-spy")
        try:
            with open(self.path, "wb") as file:
                self._py_spy = subprocess.Popen(
                    [program, "dump", "--nonblocking", "--pid", str(self.pid)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.DEVNULL,
                )
        except OSError:
            self.path = ""

    def has_answered(self, now: float) -> bool:
        """Whether it has, or never will."""
        if not self.path:
            return True
        size = os.path.getsize(self.path)
        if size > self._size:
            self._size, self._grew_at = size, now
        if self._py_spy is not None:
            return self._py_spy.poll() is not None
        return self._size > self._start and now > self._grew_at + _STABLE_S

    def text(self) -> str:
        if self._py_spy is not None and self._py_spy.poll() is None:
            self._py_spy.kill()
        if not self.path:
            return ""
        with open(self.path, "rb") as file:
            said = file.read()
        return (said if len(said) > self._start else b"").decode("utf-8", "surrogateescape")


class Census:
    """Asks on construction."""

    def __init__(self, ranks: Iterable[RankProcess], folder: hook.HookFolder | None) -> None:
        self._asked = [_Asked(process, folder) for process in ranks if process.returncode is None]

    def is_done(self, now: float) -> bool:
        """Whether all have answered who will; `now` is on the monotonic clock."""
        answered = [asked.has_answered(now) for asked in self._asked]  # each is to be looked at
        return all(answered)

    def stacks(self) -> list[Stack]:
        """One for each rank that had not ended when it was asked."""
        return [_stack(asked) for asked in self._asked]


def _stack(asked: _Asked) -> Stack:
    kernel = kernel_state(asked.pid)
    return Stack(asked.rank, asked.pid, kernel.state, kernel.waits_in, asked.text())


def _is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def _py_spy(program: str) -> str | None:
    """Beside the rank's interpreter, or on the PATH."""
    folders = [os.path.dirname(program), *os.environ.get("PATH", "").split(os.pathsep)]
    places = (os.path.join(folder, "py-spy") for folder in folders if folder.startswith("/"))
    return next((place for place in places if os.access(place, os.X_OK)), None)
