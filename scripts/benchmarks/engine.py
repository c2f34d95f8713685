"""What a training step costs under ZeRO stages 0 to 3, beside DDP, FSDP2 and, if installed, DeepSpeed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import click
from rich.table import Table

from benchmarks import figures
from benchmarks.ranks import measure_ranks

STAGES = ("stage0", "stage1", "stage2", "stage3")
GPU_SHAPE = "24,2048,16,32768,1024,8"  # 1.34 billion parameters
CPU_SHAPE = "4,256,4,8192,128,2"

Found = Mapping[str, Mapping[str, object]]


@click.command(name="engine", help=__doc__)
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Timed steps.")
@click.option(
    "--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks on CPU; one on a GPU."
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write every sample to this file.")
def command(steps: int, ranks: int, json_path: str | None) -> None:
    record: dict[str, object] = {"benchmark": "engine", "machine": figures.machine()}
    gpu = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.startswith("True")
    plan = {"cpu": ("", ranks, "fp32", CPU_SHAPE, False), "host": ("", ranks, "fp32", CPU_SHAPE, True)}
    if gpu:
        plan["gpu"] = ("0", 1, "bf16", GPU_SHAPE, False)
    for name, (devices, world, dtype, shape, tiny) in plan.items():
        found = measure(devices, world, dtype, shape, tiny, steps)
        record[name] = found
        title = {
            "cpu": f"one step of a small GPT, {world} ranks on CPU through gloo, fp32",
            "host": f"one step of 192 tensors of 8 x 8, {world} ranks on CPU: the host's cost",
            "gpu": "one step of a GPT of 1.34 billion parameters, 8 x 1024 tokens, one GPU, bf16",
        }[name]
        figures.Part(name, [table(title, found, shape, world)], [figures.machine_line()], []).print()
    if json_path is not None:
        Path(json_path).write_text(json.dumps(record, indent=2) + "\n")


def measure(devices: str, world: int, dtype: str, shape: str, tiny: bool, steps: int) -> Found:
    """Every subject's samples, from one start of the ranks."""
    subjects = ["ddp", "fsdp2", *STAGES]
    if importlib.util.find_spec("deepspeed") is not None:
        subjects += ["deepspeed1", "deepspeed2", "deepspeed3"]
    arguments = [
        *("--subjects", ",".join(["limit", *subjects]), "--shape", shape),
        *("--dtype", dtype, "--steps", str(steps), *(["--tiny"] if tiny else [])),
    ]
    found: Found = measure_ranks(world, "engine_rank.py", arguments, devices)
    return found


def table(title: str, found: Found, shape: str, world: int) -> Table:
    """Medians, and their ratios to DDP's."""
    shown = Table("subject", "ms", "x DDP", "CPU ms", "tokens/s", "peak", "x DDP", title=title)
    *_, seq, micro = (int(part) for part in shape.split(","))
    base_ms, base_peak = _median(found["ddp"]["ms"]), found["ddp"]["peak_bytes"]
    for subject, samples in found.items():
        ms, peak = _median(samples["ms"]), cast("float | None", samples["peak_bytes"])
        shown.add_row(
            subject,
            f"{ms:.1f}",
            figures.ratio(ms, base_ms),
            f"{_median(samples['cpu_ms']):.1f}",
            f"{world * micro * seq / ms * 1e3:,.0f}",
            figures.megabytes(peak),
            figures.ratio(peak, cast("float | None", base_peak)),
        )
    return shown


def _median(values: object) -> float:
    found = figures.median(cast("Sequence[float]", values))
    assert found is not None
    return found
