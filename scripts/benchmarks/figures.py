"""How figures are summed up, shown and kept: one look for all benchmarks."""

from __future__ import annotations

import os
import platform
import socket
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

_TABLE_WIDTH = 170


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of a benchmark found: for people, and for programs."""

    name: str
    tables: Sequence[Table]
    notes: Sequence[str]
    record: Sequence[Mapping[str, object]]

    def print(self) -> None:
        console = Console(width=None if sys.stdout.isatty() else _TABLE_WIDTH, highlight=False)
        for table in self.tables:
            console.print(table)
        for note in self.notes:
            console.print(note, markup=False)


def machine() -> Mapping[str, object]:
    """What figures depend on, the load at this moment included."""
    return {
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "num_cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def machine_line() -> str:
    """The same for a human reader."""
    gigabytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return (
        f"{os.cpu_count()} cores of {_cpu_model()}, {gigabytes:.0f} GB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def progress(text: str) -> None:
    """Say on a terminal what is being measured; an empty text clears the line."""
    if sys.stderr.isatty():
        click.echo(f"\r{text:<78}\r", nl=False, err=True)


def median(values: Sequence[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def seconds(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f} s"


def megabytes(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.0f} MB"


def ratio(value: float | None, base: float | None) -> str:
    return "" if value is None or base is None else f"{value / base:.2f}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
