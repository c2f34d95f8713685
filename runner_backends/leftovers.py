"""What a tool has started on this machine and left behind, found by a variable that it has passed on.

pdsh starts each ssh in a session of its own. When pdsh ends they read EOF and end as well, but those to a
host that was cut off wait for its answer.
"""

from __future__ import annotations

import contextlib
import os
import signal

VARIABLE = "DSLAUNCH_TOOL_ID"


def kill_leftovers(mark: str) -> None:
    """SIGKILL whatever carries `mark` as VARIABLE, of this user."""
    wanted = f"{VARIABLE}={mark}".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            pidfd = os.pidfd_open(int(pid))  # before the look, so that it is the same process
            try:
                with open(f"/proc/{pid}/environ", "rb") as environ:
                    is_marked = wanted in environ.read().split(b"\0")
                if is_marked:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
