"""A cgroup of the node's ranks, where one can be made: all in it end at once, whatever they have become.

Found by neither mark nor descent is what has emptied its environment and outlived the agent. A cgroup (v2,
cgroups(7); cgroup.kill since Linux 5.14) holds that too. As root, or in a delegated cgroup, it can be made.
"""

from __future__ import annotations

import contextlib
import os
import time

_REMOVE_S = 1.0
_POLL_S = 0.01


class RankCgroup:
    """Inside the agent's own, without controllers. Where none can be made, every call does nothing."""

    def __init__(self, node_id: str, root: str = "/") -> None:
        own = own_cgroup(root)
        self.path = os.path.join(own, f"dslaunch-{node_id}") if own else ""
        try:
            os.mkdir(self.path)
            if not os.access(os.path.join(self.path, "cgroup.kill"), os.W_OK):
                os.rmdir(self.path)
                self.path = ""
        except OSError:
            self.path = ""

    def enter(self) -> None:
        """This process, and what it will start."""
        self._write("cgroup.procs", b"0")

    def kill(self) -> None:
        """SIGKILL to all in it, also to what they start meanwhile."""
        self._write("cgroup.kill", b"1")

    def remove(self) -> None:
        """When all in it have ended; what cannot be ended keeps it."""
        deadline = time.monotonic() + _REMOVE_S
        while self.path and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
                return
            time.sleep(_POLL_S)

    def _write(self, name: str, data: bytes) -> None:
        if self.path:
            with contextlib.suppress(OSError):
                fd = os.open(os.path.join(self.path, name), os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(fd, data)
                finally:
                    os.close(fd)


def own_cgroup(root: str = "/") -> str:
    """The folder of this process's cgroup of the second version; "" where there is none."""
    try:
        with open(os.path.join(root, "proc/self/cgroup")) as file:
            paths = [line[3:].rstrip("\n") for line in file if line.startswith("0::/")]
        with open(os.path.join(root, "proc/self/mountinfo")) as file:
            mounts = [line.split() for line in file if " - cgroup2 " in line]
    except OSError:
        return ""
    if not paths or not mounts:
        return ""
    top, folder = mounts[0][3], mounts[0][4]
    inside = paths[0] if top == "/" else paths[0].removeprefix(top)
    return os.path.join(root, folder.lstrip("/"), inside.lstrip("/"))
