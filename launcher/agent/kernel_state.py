"""What the kernel tells of a process: whether it runs, is stopped or waits, and in which call (proc(5))."""

from __future__ import annotations

import contextlib
import os
import platform
from typing import NamedTuple

_CALLS = {
    "x86_64": {
        0: "read",
        1: "write",
        7: "poll",
        17: "pread",
        18: "pwrite",
        19: "readv",
        20: "writev",
        23: "select",
        34: "pause",
        35: "sleep",
        42: "connect",
        43: "accept",
        44: "send",
        45: "recv",
        46: "sendmsg",
        47: "recvmsg",
        61: "wait",
        72: "fcntl",
        73: "flock",
        74: "fsync",
        75: "fdatasync",
        16: "ioctl",
        202: "futex",
        230: "sleep",
        232: "epoll",
        247: "wait",
        257: "open",
        262: "stat",
        4: "stat",
        270: "select",
        271: "poll",
        281: "epoll",
        288: "accept",
    },
    "aarch64": {
        22: "epoll",
        25: "fcntl",
        29: "ioctl",
        32: "flock",
        56: "open",
        63: "read",
        64: "write",
        65: "readv",
        66: "writev",
        67: "pread",
        68: "pwrite",
        72: "select",
        73: "poll",
        79: "stat",
        82: "fsync",
        83: "fdatasync",
        95: "wait",
        98: "futex",
        101: "sleep",
        115: "sleep",
        202: "accept",
        203: "connect",
        206: "send",
        207: "recv",
        211: "sendmsg",
        212: "recvmsg",
        242: "accept",
        260: "wait",
    },
}
"""Calls that wait, by their numbers."""
_OF_A_FILE = frozenset(
    {
        *("read", "write", "pread", "pwrite", "readv", "writev", "recv", "send", "recvmsg", "sendmsg"),
        *("flock", "fcntl", "fsync", "fdatasync", "ioctl", "connect", "accept"),
    }
)


class KernelState(NamedTuple):
    """`state` is the letter of proc(5), "" for no such process; `waits_in` such as `read of pipe`."""

    state: str
    waits_in: str

    @property
    def can_run(self) -> bool:
        """Neither stopped, nor in uninterruptible sleep, nor ended: it can answer."""
        return self.state in ("R", "S")


def kernel_state(pid: int, root: str = "/") -> KernelState:
    """Of the process's main thread, now."""
    folder = os.path.join(root, "proc", str(pid))
    state = _read(os.path.join(folder, "stat")).rpartition(")")[2].split()[:1]
    if not state:
        return KernelState("", "")
    return KernelState(state[0], "" if state[0] in "RTtZX" else _waits_in(folder, state[0]))


def _waits_in(folder: str, state: str) -> str:
    words = _read(os.path.join(folder, "syscall")).split()
    call = _CALLS.get(platform.machine(), {}).get(int(words[0]), "") if words and words[0].isdecimal() else ""
    if call in _OF_A_FILE and len(words) > 1:
        with contextlib.suppress(OSError, ValueError):
            call += f" of {_file(os.readlink(os.path.join(folder, 'fd', str(int(words[1], 16)))))}"
    where = _read(os.path.join(folder, "wchan")).strip()
    if state == "D" and where not in ("", "0"):
        return f"{call} at {where}" if call else where
    return call or ("" if where == "0" else where)


def _file(target: str) -> str:
    """`pipe:[7]` is a pipe whatever its number."""
    return target.partition(":[")[0]


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
