"""What saving and loading a checkpoint costs, beside torch's DCP and, if installed, DeepSpeed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import click
from rich.table import Table

from benchmarks import figures
from benchmarks.ranks import measure_ranks

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
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Samples in a training step, which decide how long it computes.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Timed rounds.")
@click.option(
    "--directory", type=click.Path(file_okay=False, exists=True), help="The storage; default: of TMPDIR."
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write every sample to this file.")
def command(
    ranks: int, layers: int, rows: int, rounds: int, directory: str | None, json_path: str | None
) -> None:
    with tempfile.TemporaryDirectory(dir=directory, prefix="dslaunch-bench-") as storage:
        arguments = ["--directory", storage, "--layers", str(layers), "--rows", str(rows)]
        arguments += ["--rounds", str(rounds)]
        found: Mapping[str, object] = measure_ranks(ranks, "checkpoint_rank.py", arguments)
    num_bytes, subjects = cast(float, found["bytes"]), cast(Samples, found["subjects"])
    title = f"{num_bytes / 1e9:.2f} GB of masters and moments, {ranks} ranks on CPU"
    step = figures.seconds(figures.median(subjects["dslaunch"]["step_s"]))
    notes = [figures.machine_line(), f"a step alone takes {step}"]
    notes += ["memory: the largest rank's, beyond what it held before"]
    figures.Part("checkpoint", [table(title, num_bytes / ranks, num_bytes, subjects)], notes, []).print()
    if json_path is not None:
        record = {"benchmark": "checkpoint", "machine": figures.machine(), "ranks": ranks, **found}
        Path(json_path).write_text(json.dumps(record, indent=2) + "\n")


def table(title: str, shard_bytes: float, num_bytes: float, subjects: Samples) -> Table:
    """Medians; a stall is what the training loop waits."""
    saving = ("saved in", "GB/s", "stall", "of sync", "step longer by", "memory", "of a shard")
    shown = Table("subject", *saving, "loaded in", "GB/s", "memory", title=title)
    for subject, samples in sorted(subjects.items()):
        total, stall = figures.median(samples["total_s"]), figures.median(samples["stall_s"])
        steps = zip(samples["step_with_save_s"], samples["step_s"], strict=True)
        slower = figures.median([with_save - without for with_save, without in steps])
        sync = figures.median(subjects[subject.removesuffix(" async")]["stall_s"])
        load = figures.median(samples.get("load_s", []))
        memory = figures.median(samples["total_extra_bytes"])
        shown.add_row(
            subject,
            figures.seconds(total),
            _speed(num_bytes, total),
            figures.seconds(stall),
            figures.ratio(stall, sync),
            figures.seconds(slower),
            figures.megabytes(memory),
            figures.ratio(memory, shard_bytes),
            figures.seconds(load),
            _speed(num_bytes, load),
            figures.megabytes(figures.median(samples.get("load_extra_bytes", []))),
        )
    return shown


def _speed(num_bytes: float, seconds: float | None) -> str:
    return "" if seconds is None else f"{num_bytes / seconds / 1e9:.2f}"
