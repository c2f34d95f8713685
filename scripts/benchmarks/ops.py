"""What an optimizer step costs beside moving its bytes: our kernels, torch's and DeepSpeed's."""

from __future__ import annotations

import json
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Column, Table

if TYPE_CHECKING:
    from benchmarks.ops_jobs import Job

_TABLE_WIDTH = 130


@dataclass(slots=True)
class Row:
    """One implementation of one job, with the seconds of each round."""

    device: str
    job: str
    numel: int
    implementation: str
    num_bytes: int
    seconds: list[float] = field(default_factory=list)
    ratio_to_ceiling: float = 0.0  # median over rounds of bytes a second / the ceiling's in the same round
    ours_is_faster: float = 0.0  # median over rounds of seconds / ours in the same round


@click.command(name="ops", help=__doc__)
@click.option("--rounds", type=click.IntRange(min=1), default=11, show_default=True, help="Of each job.")
@click.option(
    "--numel",
    "sizes",
    type=float,
    multiple=True,
    default=(1e6, 1e7, 1e8),
    show_default=True,
    help="Elements of the flat jobs; may be given several times.",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="Default: the GPU where there is one, else the CPU."
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads on the CPU; default: torch's.")
@click.option("--huge/--no-huge", default=True, show_default=True, help="On CPUs, data in huge pages.")
@click.option(
    "--realtime", is_flag=True, help="On CPUs, samples at SCHED_FIFO, for busy machines; needs root."
)
@click.option("--only", help="Jobs whose name has this in it.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write every sample to this file.")
def command(
    rounds: int,
    sizes: Sequence[float],
    device: str | None,
    threads: int | None,
    huge: bool,
    realtime: bool,
    only: str | None,
    json_path: str | None,
) -> None:
    import torch

    from benchmarks.ops_jobs import Bench, jobs

    if threads is not None:
        torch.set_num_threads(threads)
    bench = Bench(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")), huge, realtime)
    rows: list[Row] = []
    for numel in map(int, sizes):
        for job in jobs(bench, numel):
            if only is None or only in job.name:
                rows += _measure(job, rounds)
                _print(rows[-len(job.implementations) :], rounds, bench.describe())
    if json_path is not None:
        record = {"benchmark": "ops", "rounds": rounds, "machine": _machine(bench.describe())}
        record["rows"] = [asdict(row) for row in rows]
        Path(json_path).write_text(json.dumps(record, indent=2) + "\n")


def _measure(job: Job, rounds: int) -> list[Row]:
    """Rounds of all implementations in turn, so that what the machine does meanwhile falls on all alike."""
    rows = [
        Row(job.bench.device.type, job.name, job.numel, name, implementation.num_bytes)
        for name, implementation in job.implementations.items()
    ]
    for number in range(-2, rounds):  # the first rounds warm up
        order = list(rows)
        for row in order[number % len(order) :] + order[: number % len(order)]:
            if sys.stderr.isatty():
                click.echo(f"\r{row.job} {row.implementation:<40}\r", nl=False, err=True)
            seconds = job.bench.time(job.implementations[row.implementation].step)
            if number >= 0:
                row.seconds.append(seconds)
    ceilings = [row for row in rows if row.implementation.startswith("~")]
    best = [max(row.num_bytes / row.seconds[i] for row in ceilings) for i in range(rounds)]
    ours = next(row for row in rows if row.implementation.startswith("dslaunch"))
    for row in rows:
        speeds = [row.num_bytes / seconds for seconds in row.seconds]
        row.ratio_to_ceiling = statistics.median(s / top for s, top in zip(speeds, best, strict=True))
        row.ours_is_faster = statistics.median(a / b for a, b in zip(row.seconds, ours.seconds, strict=True))
    return rows


def _print(rows: Sequence[Row], rounds: int, machine: str) -> None:
    table = Table(
        Column("implementation", no_wrap=True),
        title=f"{rows[0].job}, {rows[0].numel:,} elements; median of {rounds} rounds; {machine}",
    )
    for heading in ("ms", "best ms", "GB/s", "of the ceiling", "ours is faster"):
        table.add_column(heading, justify="right")
    for row in rows:
        median = statistics.median(row.seconds)
        table.add_row(
            row.implementation,
            f"{median * 1e3:.3f}",
            f"{min(row.seconds) * 1e3:.3f}",
            f"{row.num_bytes / median / 1e9:.1f}",
            f"{row.ratio_to_ceiling:.3f}",
            f"{row.ours_is_faster:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else _TABLE_WIDTH).print(table)


def _machine(description: str) -> Mapping[str, object]:
    return {"platform": platform.platform(), "python": platform.python_version(), "description": description}
