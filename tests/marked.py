"""Processes by a variable in their environment, wherever they have got to."""

import os
import time
from pathlib import Path


def living(name: str, value: str) -> list[int]:
    """Pids of living processes that carry `name=value`, on this machine and on hosts in its namespaces."""
    mark = f"{name}={value}".encode()
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                found.append(int(entry))
        except OSError:
            continue  # ended meanwhile
    return found


def living_after(name: str, value: str, timeout_s: float) -> list[int]:
    """What is left after the time, or as soon as nothing is."""
    deadline = time.monotonic() + timeout_s
    while (left := living(name, value)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
