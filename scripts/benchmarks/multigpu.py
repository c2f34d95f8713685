"""Scaling over the GPUs of one host, started by dslaunch: steps, bandwidth of buckets, and drills.

On a host with one GPU its ranks can share it (`--on one_gpu`), and `--on cpu` takes gloo: both only show
that everything runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from benchmarks import figures
from benchmarks.multigpu_launch import Where, drill, found_by
from benchmarks.process_tree import BenchmarkError

SHAPES = {  # layers, width, heads, vocabulary, tokens, micro batch
    "gpus": "24,2048,16,32768,1024,8",  # 1.34 billion parameters
    "one_gpu": "8,1024,16,32768,512,4",
    "cpu": "2,128,4,1024,64,2",
}
LARGE_SHAPE = "32,4096,32,32768,1024,4"  # 6.7 billion parameters
LARGE_SUBJECTS = ("fsdp2", "stage3")
LARGE_FROM = 4  # ranks: 16 bytes a parameter are 27 GB for each, and as much again at the start
SUBJECTS = ("limit", "ddp", "fsdp2", "stage1", "stage2", "stage3")
PARTS = ("steps", "bandwidth", "drills", "large")
HANG_TIMEOUT_S = 6
DRILLS: Mapping[str, Sequence[str]] = {
    "crash": (),
    "skip": ("--hang_timeout", str(HANG_TIMEOUT_S), "--grace", "2"),
}
"""What rank 1 does, and how dslaunch is asked to look at it."""
MEGABYTES = {"gpus": "1,8,32,128,512", "one_gpu": "1,8,32", "cpu": "1,8"}

Found = Mapping[str, Mapping[str, Any]]


@click.command(name="multigpu", help=__doc__)
@click.option("--on", "name", type=click.Choice([*SHAPES]), help="Default: the GPUs there are, else cpu.")
@click.option("--worlds", help="Numbers of ranks, as 1,2,4. Default: powers of two up to the GPUs, else 1,2.")
@click.option("--parts", default=",".join(PARTS), show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=12, show_default=True, help="Timed steps.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write every sample to this file.")
def command(name: str | None, worlds: str | None, parts: str, steps: int, json_path: str | None) -> None:
    num_gpus = _num_gpus()
    where = Where(name or ("gpus" if num_gpus else "cpu"))
    sizes = [int(part) for part in worlds.split(",")] if worlds is not None else _worlds(where.name, num_gpus)
    record: dict[str, Any] = {"benchmark": "multigpu", "on": where.name, "machine": figures.machine()}
    for part in parts.split(","):
        try:
            record[part] = _measure(part, where, sizes, steps)
        except BenchmarkError as error:  # the parts after it still tell something
            record[part] = {"error": str(error)}
            click.echo(f"{part}: {error}", err=True)
        if json_path is not None:
            Path(json_path).write_text(json.dumps(record, indent=2) + "\n")
    if any("error" in record[part] for part in parts.split(",") if isinstance(record[part], dict)):
        sys.exit(1)


def _measure(part: str, where: Where, sizes: Sequence[int], steps: int) -> object:
    """Measure, print, and give back for the record. Raises BenchmarkError."""
    match part:
        case "steps":
            return _steps(where, sizes, steps)
        case "large":
            return _large(where, sizes, steps)
        case "bandwidth":
            return _bandwidth(where, max(sizes))
        case "drills":
            return _drills(where, max(sizes))
    raise click.BadParameter(f"{part} is none of {', '.join(PARTS)}", param_hint="--parts")


def _steps(where: Where, sizes: Sequence[int], steps: int) -> object:
    shape = SHAPES[where.name]
    found: dict[int, Found] = {}
    for world in sizes:
        figures.progress(f"steps over {world} ranks")
        found[world] = _engine_ranks(where, world, SUBJECTS, shape, steps)
    _print(_step_table(f"one step of a GPT of shape {shape}, {where.name}", found, shape))
    return found


def _large(where: Where, sizes: Sequence[int], steps: int) -> object:
    world = max(sizes)
    if where.name != "gpus" or world < LARGE_FROM:
        return f"left out: 6.7 billion parameters need at least {LARGE_FROM} GPUs"
    found = {world: _engine_ranks(where, world, LARGE_SUBJECTS, LARGE_SHAPE, steps)}
    _print(_step_table("one step of a GPT of 6.7 billion parameters", found, LARGE_SHAPE))
    return found


def _engine_ranks(where: Where, world: int, subjects: Iterable[str], shape: str, steps: int) -> Found:
    dtype = "fp32" if where.name == "cpu" else "bf16"
    arguments = ["--subjects", ",".join(subjects), "--shape", shape, "--dtype", dtype, "--steps", str(steps)]
    found: Found = found_by(where, world, "engine_rank.py", arguments)
    return found


def _step_table(title: str, found: Mapping[int, Found], shape: str) -> Table:
    """Efficiency: tokens a second and rank, beside the same subject over the fewest ranks."""
    table = Table(title=title)
    for heading in ("ranks", "subject", "ms", "fastest", "x DDP", "tokens/s a rank", "efficiency"):
        table.add_column(heading)
    for heading in ("not hidden", "peak"):
        table.add_column(heading)
    *_, seq, micro = (int(part) for part in shape.split(","))
    first = min(found)
    for world, subjects in found.items():
        table.add_section()
        for subject, samples in subjects.items():
            ms = figures.median(samples["ms"])
            assert ms is not None
            base = figures.median(subjects["ddp"]["ms"]) if "ddp" in subjects else None
            exposed = samples["exposed"]
            table.add_row(
                str(world),
                subject,
                f"{ms:.1f}",
                f"{min(samples['ms']):.1f}",
                figures.ratio(ms, base),
                f"{micro * seq / ms * 1e3:,.0f}",
                figures.ratio(figures.median(found[first][subject]["ms"]), ms),
                "" if exposed is None else f"{exposed:.1%}",
                figures.megabytes(samples["peak_bytes"]),
            )
    return table


def _bandwidth(where: Where, world: int) -> object:
    if world == 1:
        return "left out: one rank sends nothing"
    figures.progress(f"bandwidth over {world} ranks")
    found = found_by(where, world, "bandwidth_rank.py", ["--megabytes", MEGABYTES[where.name]])
    table = Table(title=f"bus bandwidth of bf16 buckets over {world} ranks, GB/s")
    for heading in ("MiB", "reduce-scatter", "raw", "ratio", "all-gather", "raw", "ratio"):
        table.add_column(heading)
    for row in found:
        cells = [str(row["megabytes"])]
        for name in ("reduce_scatter", "all_gather"):
            ours, raw = row["bytes_per_s"][name], row["bytes_per_s"][f"raw {name}"]
            cells += [f"{ours / 1e9:.2f}", f"{raw / 1e9:.2f}", figures.ratio(ours, raw)]
        table.add_row(*cells)
    _print(table)
    return found


def _drills(where: Where, world: int) -> object:
    if world == 1:
        return "left out: a drill needs a rank that waits for another"
    record = {}
    table = Table(title=f"rank 1 of {world} fails in a collective")
    for heading in ("drill", "s to the end", "exit code", "cause", "ranks named"):
        table.add_column(heading)
    said = []
    for kind, options in DRILLS.items():
        figures.progress(f"drill: {kind}")
        drilled = drill(where, world, kind, options)
        record[kind] = asdict(drilled)
        said.append(f"{kind}:\n{drilled.said}")
        ranks = ", ".join(str(rank) for rank in drilled.ranks)
        table.add_row(kind, f"{drilled.exit_s:.2f}", str(drilled.exit_code), drilled.kind, ranks)
    note = f"skip: rank 1 stays away from a collective; --hang_timeout {HANG_TIMEOUT_S} is part of its time"
    _print(table, [note, *said])
    return record


def _print(table: Table, notes: Sequence[str] = ()) -> None:
    figures.progress("")
    figures.Part("multigpu", [table], [*notes, figures.machine_line()], []).print()


def _worlds(name: str, num_gpus: int) -> list[int]:
    if name != "gpus":
        return [1, 2]
    return [world for world in (1, 2, 4, 8) if world <= num_gpus]


def _num_gpus() -> int:
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)
