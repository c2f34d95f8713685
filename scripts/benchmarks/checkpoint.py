"""What saving and loading a checkpoint costs, beside torch's DCP and, if installed, DeepSpeed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import click
from rich.table import Table

from benchmarks import figures
from benchmarks.process_tree import BenchmarkError

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1200

Samples = Mapping[str, Mapping[str, list[float]]]


@click.command(name="checkpoint", help=__doc__)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks on the CPU.")
@click.option(
    "--layers",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Layers of 2^20 elements.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Timed rounds.")
@click.option(
    "--directory", type=click.Path(file_okay=False, exists=True), help="The storage; default: of TMPDIR."
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write every sample to this file.")
def command(ranks: int, layers: int, rounds: int, directory: str | None, json_path: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=directory, prefix="dslaunch-bench-") as storage:
        found = measure(ranks, ["--directory", storage, "--layers", str(layers), "--rounds", str(rounds)])
    num_bytes, subjects = cast(float, found["bytes"]), cast(Samples, found["subjects"])
    title = f"{num_bytes / 1e9:.2f} GB of masters and moments, {ranks} ranks on CPU"
    notes = [figures.machine_line(), "memory: the largest rank's, beyond what it held before"]
    figures.Part("checkpoint", [table(title, num_bytes / ranks, num_bytes, subjects)], notes, []).print()
    if json_path is not None:
        record = {"benchmark": "checkpoint", "machine": figures.machine(), "ranks": ranks, **found}
        Path(json_path).write_text(json.dumps(record, indent=2) + "\n")


def measure(ranks: int, arguments: list[str]) -> Mapping[str, object]:
    """Every subject's samples, from one start of the ranks."""
    port = figures.free_port()
    payload = ROOT / "scripts/benchmarks/payload/checkpoint_rank.py"
    started = [
        subprocess.Popen(
            [sys.executable, str(payload), *arguments],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(ROOT / "src"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        ended = [process.communicate(timeout=TIMEOUT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, said) in zip(started, ended, strict=True):
        if process.returncode:
            raise BenchmarkError(f"a rank ended with {process.returncode}: {said[-2000:]}")
    return cast("Mapping[str, object]", json.loads(ended[0][0].splitlines()[-1]))


def table(title: str, shard_bytes: float, num_bytes: float, subjects: Samples) -> Table:
    """Medians; a stall is what the training loop waits."""
    saving = ("saved in", "GB/s", "stall", "of sync", "memory", "of a shard")
    shown = Table("subject", *saving, "loaded in", "GB/s", "memory", title=title)
    for subject, samples in sorted(subjects.items()):
        total, stall = figures.median(samples["total_s"]), figures.median(samples["stall_s"])
        sync = figures.median(subjects[subject.removesuffix(" async")]["total_s"])
        load = figures.median(samples.get("load_s", []))
        memory = figures.median(samples["total_extra_bytes"])
        shown.add_row(
            subject,
            figures.seconds(total),
            _speed(num_bytes, total),
            figures.seconds(stall),
            figures.ratio(stall, sync),
            figures.megabytes(memory),
            figures.ratio(memory, shard_bytes),
            figures.seconds(load),
            _speed(num_bytes, load),
            figures.megabytes(figures.median(samples.get("load_extra_bytes", []))),
        )
    return shown


def _speed(num_bytes: float, seconds: float | None) -> str:
    return "" if seconds is None else f"{num_bytes / seconds / 1e9:.2f}"
