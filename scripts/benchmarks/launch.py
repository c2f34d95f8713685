"""What a launcher costs: from its command line to its ranks' first lines, and to its end."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Column, Table

from benchmarks.process_tree import BenchmarkError, Sample, launcher_pss_bytes, measure

PAYLOAD = str(Path(__file__).parent / "payload" / "rank.py")
_BIN = Path(sys.executable).parent
_TABLE_WIDTH = 150
BARE = "processes alone"


@dataclass(slots=True)
class Case:
    """One command to measure, and what was measured. `num_ranks` is 0 where it starts none."""

    name: str
    argv: list[str]
    num_ranks: int
    environ: dict[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    launcher_pss_bytes: int | None = None


@click.command(name="launch", help=__doc__)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Runs of each command."
)
@click.option(
    "--ranks",
    "rank_counts",
    type=click.IntRange(min=1),
    multiple=True,
    default=(2, 8),
    show_default=True,
    help="Local ranks; may be given several times.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write every sample to this file.")
def command(rounds: int, rank_counts: Sequence[int], json_path: str | None) -> None:
    cases = _cases(rank_counts)
    environ = _environ()
    load = os.getloadavg()[0]
    try:
        for number in range(-1, rounds):  # the first round only warms the caches
            for case in cases:
                _progress(f"round {number + 1} of {rounds}: {case.name}")
                sample = measure(case.argv, {**environ, **case.environ}, case.num_ranks)
                if number >= 0:
                    case.samples.append(sample)
        for case in cases:
            if case.num_ranks and case.name != BARE:
                case.launcher_pss_bytes = launcher_pss_bytes(
                    case.argv, {**environ, **case.environ}, case.num_ranks
                )
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
    _progress("")
    _print(cases, rounds, load)
    if json_path is not None:
        Path(json_path).write_text(json.dumps(_record(cases, rounds, load), indent=2) + "\n")


def _cases(rank_counts: Sequence[int]) -> list[Case]:
    dslaunch, python = str(_BIN / "dslaunch"), sys.executable
    cases = [
        Case("python -c pass", [python, "-c", "pass"], 0),
        Case("dslaunch --help", [dslaunch, "--help"], 0),
        Case("dslaunch --dry_run", [dslaunch, "--num_gpus", "8", "--dry_run", PAYLOAD], 0),
    ]
    for n in rank_counts:
        # No launcher at all: what n interpreters cost on this machine.
        start_all = f"for i in $(seq {n}); do {shlex.join([python, PAYLOAD])} & done; wait"
        cases.append(Case(BARE, ["sh", "-c", start_all], n))
        cases.append(Case("dslaunch", [dslaunch, "--num_gpus", str(n), PAYLOAD], n))
        cases += _peers(n)
    return cases


def _peers(n: int) -> list[Case]:
    """The launchers that this machine has."""
    path = f"{_BIN}:{os.environ.get('PATH', os.defpath)}"
    cases = []
    if torchrun := shutil.which("torchrun", path=path):
        cases.append(Case("torchrun", [torchrun, "--standalone", "--nproc-per-node", str(n), PAYLOAD], n))
    if mpirun := shutil.which("mpirun", path=path):
        options = ["--map-by", ":OVERSUBSCRIBE", "-n", str(n)]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        cases.append(Case("mpirun", [mpirun, *root, *options, sys.executable, PAYLOAD], n))
    if deepspeed := shutil.which("deepspeed", path=path):
        options = ["--hostfile", "/nonexistent", "--num_gpus", str(n), "--no_local_rank"]
        # Without these it looks for GPUs, and takes no more ranks than it finds.
        environ = {"DS_ACCELERATOR": "cpu", "DS_IGNORE_CUDA_DETECTION": "1", "LOCAL_SIZE": "64"}
        cases.append(Case("deepspeed", [deepspeed, *options, PAYLOAD], n, environ))
    return cases


def _environ() -> Mapping[str, str]:
    """The caller's, on CPU slots, with bytecode caches as an installed program has them."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return environ


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{text:<60}\r", nl=False, err=True)


def _print(cases: Sequence[Case], rounds: int, load: float) -> None:
    times = Table(
        Column("command", no_wrap=True),
        title=f"median of {rounds} rounds, load {load:.1f}, {os.cpu_count()} cores",
    )
    for heading in ("ranks", "first line", "all lines", "exit", "fastest exit", "CPU", "largest process"):
        times.add_column(heading, justify="right")
    for heading in ("launcher's memory", "first line / ours", "exit / ours"):
        times.add_column(heading, justify="right")
    for case in cases:
        ours = next((c for c in cases if c.name == "dslaunch" and c.num_ranks == case.num_ranks), case)
        if case.name in (BARE, "python -c pass"):
            times.add_section()
        times.add_row(
            case.name,
            str(case.num_ranks or ""),
            _seconds(_first_s(case)),
            _seconds(_median([s.last_line_s for s in case.samples])),
            _seconds(_exit_s(case)),
            _seconds(min(s.exit_s for s in case.samples)),
            _seconds(_median([s.cpu_s for s in case.samples])),
            _megabytes(max(s.max_rss_bytes for s in case.samples)),
            _megabytes(case.launcher_pss_bytes),
            _ratio(_first_s(case), _first_s(ours)),
            _ratio(_exit_s(case), _exit_s(ours)) if case.num_ranks else "",
        )
    Console(width=None if sys.stdout.isatty() else _TABLE_WIDTH).print(times)


def _record(cases: Sequence[Case], rounds: int, load: float) -> Mapping[str, object]:
    return {
        "benchmark": "launch",
        "rounds": rounds,
        "machine": {
            "platform": platform.platform(),
            "num_cpus": os.cpu_count(),
            "load_before": load,
            "python": platform.python_version(),
        },
        "cases": [asdict(case) for case in cases],
    }


def _first_s(case: Case) -> float | None:
    return _median([sample.first_line_s for sample in case.samples])


def _exit_s(case: Case) -> float | None:
    return _median([sample.exit_s for sample in case.samples])


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s"


def _megabytes(value: int | None) -> str:
    return "" if value is None else f"{value / 1e6:.0f} MB"


def _ratio(value: float | None, base: float | None) -> str:
    return "" if value is None or base is None else f"{value / base:.1f}"
