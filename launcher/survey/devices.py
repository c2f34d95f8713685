"""How many devices are here, who holds them, and what the kernel knows of their health."""

from __future__ import annotations

import contextlib
import os
import re
import time

from dslaunch.launcher.devices import count
from dslaunch.launcher.survey.records import Devices, Holder

_RECENT_S = 24 * 3600
_APPLICATIONS_FAULTS = frozenset({13, 31, 43, 45, 94})
"""Xids that a program brings about, not the hardware (docs.nvidia.com/deploy/xid-errors)."""
_DEVICE = re.compile(r"/dev/nvidia(\d+)")
_INFINIBAND = "/sys/class/infiniband"


def devices(accelerator: str, *, is_thorough: bool) -> Devices:
    """Not `is_thorough`, only the number and the links."""
    found = count(accelerator=accelerator)
    if not is_thorough or found.kind != "cuda":
        return Devices(found.kind, found.num_devices, links=_links())
    from dslaunch.launcher.survey import gpus  # XML is slow to load

    listed, holders = gpus.query()
    known = {holder.pid for holder in holders}
    return Devices(
        found.kind,
        found.num_devices,
        listed,
        holders + tuple(holder for holder in _openers() if holder.pid not in known),
        _xids(),
        _links(),
    )


def _openers() -> list[Holder]:
    """Processes that have a device file open, as far as they may be looked at.

    The driver's tool does not list those of other containers, nor those that use no memory yet.
    """
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            paths = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            opened = {int(match[1]) for path in paths if (match := _DEVICE.fullmatch(path))}
            found += [Holder(device, int(pid), _command(pid), 0) for device in sorted(opened)]
    return found


def _command(pid: str) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()[:200]


def _xids() -> tuple[str, ...]:
    """The driver's errors of the last day, where the kernel's log may be read."""
    found = []
    with contextlib.suppress(OSError):
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(os.read(fd, 8192))
        finally:
            os.close(fd)
    return tuple(words for record in found if (words := xid(record, time.clock_gettime(time.CLOCK_BOOTTIME))))


def xid(record: bytes, now_s: float) -> str:
    """What a record of the kernel's log says of a device's error; "" where it does not, or is old.

    `now_s` is the time since boot.
    """
    head, _, text = record.decode("utf-8", "replace").partition(";")
    found = re.match(r"NVRM: Xid \((?:PCI:)?([^)]+)\): (\d+)", text)
    fields = head.split(",")
    if not found or len(fields) < 3 or int(found[2]) in _APPLICATIONS_FAULTS:
        return ""
    age_s = now_s - int(fields[2]) / 1e6
    return f"Xid {found[2]} on {found[1]}, {age_s / 60:.0f} min ago" if age_s < _RECENT_S else ""


def _links() -> tuple[tuple[str, str], ...]:
    """Ports of RDMA adapters and their states."""
    found = []
    with contextlib.suppress(OSError):
        for adapter in sorted(os.listdir(_INFINIBAND)):
            for port in sorted(os.listdir(f"{_INFINIBAND}/{adapter}/ports")):
                with open(f"{_INFINIBAND}/{adapter}/ports/{port}/state") as file:
                    found.append((f"{adapter}/{port}", file.read().partition(":")[2].strip()))
    return tuple(found)
