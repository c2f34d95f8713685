"""How a rank tells where it is, with no user code: a sitecustomize that lets faulthandler answer a signal.

The agent writes it into a private folder, which comes first on the ranks' PYTHONPATH. Interpreters that do
not look there (`-S`, `-I`, `-E`) and other programs are left alone: of them the kernel's state is known.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Mapping

DUMP_SIGNAL = signal.SIGRTMAX - 3
"""Nothing else is known to use it. It is sent only to a process that has a handler for it and no mask."""
_PREFIX = "dslaunch-"
_STALE_S = 60.0
"""A younger folder without a lock may be about to get one."""
_SOURCE = """\
# Written by dslaunch: lets it ask this process for its Python stacks. It is gone when the job has ended.
import os
import sys


def _answer(folder):
    import _thread
    import faulthandler
    import fcntl

    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    fd = os.open(os.path.join(folder, "%d.stack" % os.getpid()), flags, 0o600)
    os.write(fd, b"main thread 0x%x\\n" % _thread.get_ident())
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(fd)
    faulthandler.register(SIGNAL, file=high, all_threads=True, chain=False)


def _leave_no_trace(folder):
    sys.path[:] = [path for path in sys.path if path != folder]
    rest = [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if path != folder]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        del os.environ["PYTHONPATH"]


_folder = os.path.dirname(__file__)
try:
    _answer(_folder)
except Exception:
    pass  # a full disk, a low limit: then the rank cannot be asked, and runs as it would have
_leave_no_trace(_folder)
_own = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # the user's or the system's own
except ImportError as error:
    if error.name != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _own)
""".replace("SIGNAL", str(int(DUMP_SIGNAL)))


class HookFolder:
    """A folder that only this user can enter, with the sitecustomize in it; `close` removes it."""

    def __init__(self, node_id: str) -> None:
        """Raises OSError where it cannot be made. The job's id in its name is random."""
        self.path = path(node_id)
        os.mkdir(self.path, 0o700)
        self._lock = _locked(self.path)  # as long as this process lives
        _remove_stale(os.path.dirname(self.path))
        with open(os.path.join(self.path, "sitecustomize.py"), "w") as file:
            file.write(_SOURCE)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What a rank's environment gains."""
        there = environ.get("PYTHONPATH")
        return {"PYTHONPATH": f"{self.path}{os.pathsep}{there}" if there else self.path}

    def stack_file(self, pid: int) -> str:
        """Where that process writes its stacks; it exists once the process can be asked."""
        return os.path.join(self.path, f"{pid}.stack")


def path(node_id: str) -> str:
    """The node's folder."""
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"{_PREFIX}{node_id}")


def remove(folder: str) -> None:
    """The folder and all in it, if it is there."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            inner = os.path.join(folder, name)
            if os.path.isdir(inner) and not os.path.islink(inner):
                remove(inner)
            else:
                os.unlink(inner)
        os.rmdir(folder)


def _locked(folder: str) -> int | None:
    """A descriptor that holds a lock on a folder; None where somebody else does."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _remove_stale(parent: str) -> None:
    """What is left of agents that were killed together with their guards, as when a host dies."""
    try:
        names = os.listdir(parent)
    except OSError:
        return  # it may be entered, but not read
    for name in names:
        folder = os.path.join(parent, name)
        job_id, _, node_rank = name.removeprefix(_PREFIX).partition(".")
        if not (name.startswith(_PREFIX) and len(job_id) == 16 and node_rank.isdecimal()):
            continue
        with contextlib.suppress(OSError):  # another's, or just removed
            status = os.lstat(folder)
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _STALE_S:
                continue
            fd = _locked(folder)
            if fd is not None:
                remove(folder)
                os.close(fd)


def can_be_asked(pid: int, stack_file: str) -> bool:
    """Whether the process handles the signal, does not mask it, and still has its file open."""
    if not os.path.exists(stack_file):
        return False
    bit = 1 << (int(DUMP_SIGNAL) - 1)
    masks = _signal_masks(pid)
    if not masks.get("SigCgt", 0) & bit or masks.get("SigBlk", bit) & bit:
        return False
    try:
        return any(_target(pid, fd) == stack_file for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def _signal_masks(pid: int) -> dict[str, int]:
    """Those of the main thread (proc(5))."""
    try:
        with open(f"/proc/{pid}/status") as file:
            pairs = (line.split(":") for line in file if line.startswith("Sig"))
            return {pair[0]: int(pair[1], 16) for pair in pairs if pair[0] != "SigQ"}
    except (OSError, ValueError):
        return {}


def _target(pid: int, fd: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
