"""The agent's last will: a process that does nothing but end the node's processes when the agent is killed.

The kernel ends ranks with the agent (PR_SET_PDEATHSIG), but not what they started: that is found by mark, and
by cgroup where there is one.
"""

from __future__ import annotations

import contextlib
import os
import signal

from dslaunch.launcher.agent import hook
from dslaunch.launcher.agent.cgroup import RankCgroup
from dslaunch.launcher.agent.sweep import sweep

_ALL_IS_WELL = b"."


class Guard:
    """Forked before the first rank, in a session of its own; holds none of the agent's descriptors."""

    def __init__(self, node_id: str, cgroup: RankCgroup) -> None:
        read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _wait_and_sweep(read_fd, node_id, cgroup)
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


def _wait_and_sweep(read_fd: int, node_id: str, cgroup: RankCgroup) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd != read_fd:
            with contextlib.suppress(OSError):  # the one that listed the folder is closed already
                os.close(fd)
    if os.read(read_fd, 1) != _ALL_IS_WELL:
        cgroup.kill()
        sweep(node_id)
        cgroup.remove()
        hook.remove(hook.path(node_id))
