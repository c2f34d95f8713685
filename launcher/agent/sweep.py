"""Find and end what ranks left behind: every descendant carries its node's mark in its environment.

What has emptied its environment is still found by descent, as long as the agent, its subreaper, lives.

The mark names the node, not the job alone: two hosts of a job may be containers that see each other's
processes.
"""

from __future__ import annotations

import os
import signal
import time

from dslaunch.launcher.agent.family import descendants

MARKER = "DSLAUNCH_NODE_ID"


def survivors(node_id: str) -> list[int]:
    """Pids of this node's living processes, whatever session, group or parent they have now."""
    mark = f"{MARKER}={node_id}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:
                carries_mark = mark in environ.read().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or another user's
        if carries_mark:
            found.append(int(name))
    return found


def sweep(node_id: str, timeout_s: float = 5.0, spared: int = 0) -> list[int]:
    """SIGKILL the node's processes, and all that descends from this one, until none is left but `spared`.

    Returns those that would not go: in uninterruptible sleep, or another user's.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        pids = sorted({*survivors(node_id), *descendants(os.getpid())} - {spared})
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        _reap()
        if not pids or time.monotonic() > deadline:
            return pids
        time.sleep(0.005)


def _reap() -> None:
    """Collect adopted children: a zombie's environment is unreadable, so they are not found above."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return
