"""Room and limits of this host."""

from __future__ import annotations

import contextlib
import os
import resource

from dslaunch.launcher.survey.records import Machine, Space


def machine(folder: str) -> Machine:
    """Of this host, and of the process that ranks would inherit their limits from."""
    places = (
        ("/dev/shm", "/dev/shm"),
        ("the folder", folder),
        ("temporary files", os.environ.get("TMPDIR") or "/tmp"),
    )
    return Machine(
        spaces=tuple(found for purpose, path in places if (found := _space(purpose, path))),
        memlock_bytes=_limit(resource.RLIMIT_MEMLOCK),
        num_files=_limit(resource.RLIMIT_NOFILE),
        somaxconn=_number("/proc/sys/net/core/somaxconn", -1),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        memory_errors=_memory_errors(),
    )


def _space(purpose: str, path: str) -> Space | None:
    """None for what is not there, or not to be written to: an image that is full by nature."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    if found.f_flag & os.ST_RDONLY or not found.f_blocks:
        return None
    free_inodes = found.f_favail if found.f_files else -1
    return Space(purpose, path, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, free_inodes)


def _limit(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return -1 if soft == resource.RLIM_INFINITY else soft


def _number(path: str, default: int) -> int:
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return int(file.read())
    return default


def _memory_errors() -> int:
    """Uncorrected errors of RAM, as the kernel's EDAC drivers count them."""
    base = "/sys/devices/system/edac/mc"
    with contextlib.suppress(OSError):
        return sum(_number(os.path.join(base, name, "ue_count"), 0) for name in os.listdir(base))
    return 0
