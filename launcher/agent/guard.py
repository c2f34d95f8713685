"""The agent's last will: a process that does nothing but end the node's processes when the agent is killed.

The kernel ends ranks with the agent (PR_SET_PDEATHSIG), but not what they started: that is found by mark, and
by cgroup where there is one. MPICH's mpirun says nothing of a process that has ended: there the guard says
for the agent what a shell around it says for other tools (runner_backends/farewell.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Collection

from dslaunch.launcher.agent import hook
from dslaunch.launcher.agent.cgroup import RankCgroup
from dslaunch.launcher.agent.sweep import sweep

_ALL_IS_WELL = b"."
_EXIT_CODE_FIELD = 49
"""In /proc/PID/stat, counted from the state on; the kernel keeps a wait status there (proc(5))."""
_SAY_S = 5.0
"""How long the way to the launcher may be full."""


class Guard:
    """Forked before the first rank, in a session of its own."""

    def __init__(self, node_id: str, cgroup: RankCgroup, farewell_fd: int | None) -> None:
        """It holds none of the agent's descriptors but `farewell_fd`, if any: there it says goodbye."""
        read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)
        agent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                if not _is_dismissed(read_fd, {read_fd, farewell_fd}):
                    farewell = b"" if farewell_fd is None else _farewell(agent)
                    is_said = farewell_fd is None or _say(farewell_fd, farewell, 0.0)
                    _sweep(node_id, cgroup)
                    if farewell_fd is not None and not is_said:
                        _say(farewell_fd, farewell, _SAY_S)
            finally:
                os._exit(0)
        os.close(read_fd)

    def dismiss(self) -> None:
        """The agent has swept itself; when this returns the guard is gone too."""
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(self._write_fd, _ALL_IS_WELL)
        os.close(self._write_fd)
        with contextlib.suppress(ChildProcessError):  # and collected
            os.waitpid(self.pid, 0)


def _is_dismissed(read_fd: int, kept: Collection[int | None]) -> bool:
    """Waits for the agent's word, or its end; closes all descriptors but `kept`."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd not in kept:
            with contextlib.suppress(OSError):  # the one that listed the folder is closed already
                os.close(fd)
    return os.read(read_fd, 1) == _ALL_IS_WELL


def _farewell(agent: int) -> bytes:
    """Nobody has collected the agent yet, or else it was surely killed."""
    code = -signal.SIGKILL
    with contextlib.suppress(OSError), open(f"/proc/{agent}/stat", errors="replace") as file:
        code = os.waitstatus_to_exitcode(int(file.read().rpartition(")")[2].split()[_EXIT_CODE_FIELD]))
    return b"<dslaunch:ended %d>\n" % (code if code >= 0 else 128 - code)


def _say(fd: int, line: bytes, timeout_s: float) -> bool:
    """Whether it went out, all at once: no line of ours is longer than a pipe takes so (pipe(7))."""
    try:
        return bool(select.select([], [fd], [], timeout_s)[1]) and os.write(fd, line) > 0
    except OSError:  # nobody listens any more, or there is not room for all of it
        return False


def _sweep(node_id: str, cgroup: RankCgroup) -> None:
    cgroup.kill()
    sweep(node_id)
    cgroup.remove()
    hook.remove(hook.path(node_id))
