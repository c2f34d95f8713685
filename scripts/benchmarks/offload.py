"""What a step costs whose optimizer the host keeps and steps, on one GPU; and checks on it.

Also without scripts/bench: PYTHONPATH=src:scripts python3 -m benchmarks.offload
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Column, Table

from benchmarks import figures
from benchmarks.ranks import PAYLOAD, ROOT
from dslaunch.runner_backends.group import bound_to_us

SHAPE = "24,2048,16,32768,1024,8"  # 1.34 billion parameters, as in `scripts/bench engine`
SUBJECTS = (
    "limit,offload,offload-late,offload-low-late,offload-eager,offload-eager-late,offload-half,offload-params"
    ",offload-params-late"
)
ON_TWO_RANKS = "stage 1;stage 2, eager;stage 3, parameters"
PARTS = ("checks", "steps")

Found = Mapping[str, Any]


@click.command(name="offload", help=__doc__)
@click.option("--steps", type=click.IntRange(min=1), default=6, show_default=True, help="Timed steps.")
@click.option("--shape", default=SHAPE, show_default=True, help="layers,width,heads,vocab,seq,micro")
@click.option("--subjects", default=SUBJECTS, show_default=True, help="Also deepspeed-offload.")
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="Leave the other parts out.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write everything to this file.")
def command(steps: int, shape: str, subjects: str, only: Sequence[str], json_path: str | None) -> None:
    import torch

    if not torch.cuda.is_available():
        raise click.UsageError("there is no GPU that torch can use")
    rank = [sys.executable, str(PAYLOAD / "engine_rank.py"), "--subjects", subjects, "--shape", shape]
    cases = [sys.executable, str(ROOT / "tests/engine/cuda_offload_cases.py")]
    runs = {
        "build": [Run("build", [[sys.executable, "-c", BUILD]], 60)],
        "checks": [
            Run("checks, 1 rank", [cases], 90),
            Run("checks, 2 ranks", [[*cases, ON_TWO_RANKS]] * 2, 90),
        ],
        "steps": [Run("steps", [[*rank, "--steps", str(steps)]], 120)],
    }
    record: dict[str, object] = {"benchmark": "offload", "machine": figures.machine()}
    for part, together in runs.items():
        if only and part in PARTS and part not in only:
            continue
        with ThreadPoolExecutor() as pool:
            for run, found in zip(together, pool.map(outcome, together), strict=True):
                record[run.name] = found
                show(run.name, found, shape)
        if json_path is not None:  # what is known so far, should the next part not end
            Path(json_path).write_text(json.dumps(record, indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class Run:
    """Ranks that share the GPU, one a command, each of which must end in time."""

    name: str
    commands: Sequence[Sequence[str]]
    limit_s: float


BUILD = "from dslaunch.engine.ops.build import build_cpu; import json; print(json.dumps(str(build_cpu())))"


def outcome(run: Run) -> dict[str, object]:
    """What rank 0 printed last, as "found"; or the ranks' words, as "error"; and "seconds"."""
    begun, world = time.monotonic(), len(run.commands)
    common = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'scripts'}"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS"):
        common.pop(name, None)
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(figures.free_port()), "WORLD_SIZE": str(world)}
    started = [
        subprocess.Popen(
            bound_to_us(tuple(command)),
            env={**common, "RANK": str(rank), "LOCAL_RANK": "0", "NCCL_HOSTID": f"host{rank}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, command in enumerate(run.commands)
    ]
    deadline = begun + run.limit_s
    said: list[tuple[str, str]] = []
    for process in started:
        try:
            said.append(process.communicate(timeout=max(1.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            said.append((out, f"{err}\nnot done after {run.limit_s:.0f} s"))
    found: dict[str, object] = {"seconds": time.monotonic() - begun, "stderr": said[0][1][-500:]}
    if any(process.returncode for process in started):
        return {**found, "error": "\n".join(err[-3000:] for _, err in said)}
    return {**found, "found": json.loads(said[0][0].splitlines()[-1])}


def show(name: str, found: Found, shape: str) -> None:
    """A table, or the error."""
    note = f"{name}: {found['seconds']:.0f} s"
    if "error" in found:
        figures.Part(name, [], [f"{note}, failed:\n{found['error']}"], []).print()
        return
    made = steps_tables(found["found"], shape) if name == "steps" else []
    notes = [note] if made else [f"{note}: {json.dumps(found['found'])}"]
    figures.Part(name, made, notes, []).print()


def steps_tables(found: Found, shape: str) -> list[Table]:
    """Milliseconds and memory, and when what went on."""
    title = f"one step, {shape}; {figures.machine_line()}"
    shown = Table(Column("subject", no_wrap=True), "ms", "fastest", "x limit", "peak", "losses", title=title)
    limit = figures.median(found["limit"]["ms"]) if "limit" in found else None
    for subject, of in found.items():
        ms = figures.median(of["ms"])
        losses = " ".join(f"{loss:.4f}" for loss in of["losses"])
        fastest, peak = f"{min(of['ms']):.1f}", figures.megabytes(of["peak_bytes"])
        shown.add_row(subject, f"{ms:.1f}", fastest, figures.ratio(ms, limit), peak, losses)
    when = Table(
        "subject", "what", "start", "end", "busy", "beside kernels", "kinds", title="one step, in ms"
    )
    for subject, of in found.items():
        for kind, span in (of["timeline"] or {}).items():
            parts = [f"{span[key]:.1f}" for key in ("start", "end", "busy", "beside kernels")]
            when.add_row(subject, kind, *parts, str(span["names"]) if span["names"] else "")
    return [shown, when]


if __name__ == "__main__":
    command()
