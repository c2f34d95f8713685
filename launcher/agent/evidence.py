"""What the host knows about a rank that was killed by a signal: above all, whether memory ran out."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

_MIB = 1 << 20
_MAX_MESSAGES = 20_000
"""Of the kernel's log, which gives one at a time."""
_MAX_SAID_CHARS = 160


class OomCounts(NamedTuple):
    """How often the kernel's OOM killer has acted: in this process's cgroup, and on the host."""

    cgroup: int
    host: int


def oom_counts(root: str = "/") -> OomCounts:
    """Now. Counts that cannot be read are 0 (cgroup v2 memory.events, /proc/vmstat)."""
    return OomCounts(
        _count(os.path.join(_cgroup(root), "memory.events"), "oom_kill"),
        _count(os.path.join(root, "proc/vmstat"), "oom_kill"),
    )


def explain(returncode: int, pid: int, before: OomCounts, root: str = "/") -> str:
    """A sentence about an end by a signal that the launcher did not send; "" where nothing is known."""
    match -returncode:
        case signal.SIGKILL:
            return _explain_kill(pid, before, root)
        case signal.SIGBUS:
            return _explain_bus(root)
        case signal.SIGXCPU | signal.SIGXFSZ:
            return "it ran into a resource limit: see ulimit -a"
        case _:
            return ""


def _explain_kill(pid: int, before: OomCounts, root: str) -> str:
    said = _kernel_said(f"Killed process {pid} (", os.path.join(root, "dev/kmsg"))
    if said:
        return f"out of memory, by the kernel's log: {said}"
    now = oom_counts(root)
    if now.cgroup > before.cgroup:
        limit = _read(os.path.join(_cgroup(root), "memory.max")).strip()
        of = f" of {int(limit) // _MIB} MiB" if limit.isdecimal() else ""
        return f"out of memory: the kernel killed it at its cgroup's limit{of}"
    if now.host > before.host:
        return "out of memory: the kernel's OOM killer acted on this host while it ran"
    return "not by dslaunch, and the kernel's OOM killer has not acted: someone else, or a batch system"


def _kernel_said(words: str, path: str) -> str:
    """The newest message with these words in the kernel's log; "" where it cannot be read."""
    log = b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        for _ in range(_MAX_MESSAGES):
            try:
                record = os.read(fd, 8192)
            except BrokenPipeError:
                continue  # overwritten meanwhile: the next read goes on behind it
            if not record:
                break
            log += record
    except OSError:
        pass  # EAGAIN: that was the last one
    finally:
        os.close(fd)
    lines = log.decode("utf-8", "replace").splitlines()
    found = [line.partition(";")[2] for line in lines if words in line]
    return found[-1][:_MAX_SAID_CHARS] if found else ""


def _explain_bus(root: str) -> str:
    try:
        shm = os.statvfs(os.path.join(root, "dev/shm"))
    except OSError:
        return ""
    size, free = shm.f_blocks * shm.f_frsize // _MIB, shm.f_bavail * shm.f_frsize // _MIB
    return f"often a full /dev/shm: {free} of {size} MiB are free there (containers: --shm-size)"


def _cgroup(root: str) -> str:
    """The folder of this process's cgroup (v2: the line `0::/path`)."""
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        if line.startswith("0::"):
            return os.path.join(root, "sys/fs/cgroup", line[3:].strip().lstrip("/"))
    return os.path.join(root, "sys/fs/cgroup")


def _count(path: str, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
