"""Ranks on this machine: from the command line to their first lines, and to the end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Column, Table

from benchmarks import peers
from benchmarks.figures import Part, machine_line, median, megabytes, progress, ratio, seconds
from benchmarks.process_tree import Cost, Sample, launcher_cost, measure

PAYLOAD = str(Path(__file__).parent / "payload" / "rank.py")
BARE = "processes alone"


@dataclass(slots=True)
class Case:
    """One command to measure, and what was measured. `num_ranks` is 0 where it starts none."""

    name: str
    argv: list[str]
    num_ranks: int
    environ: dict[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    cost: Cost | None = None

    @property
    def first_s(self) -> float | None:
        return median([sample.first_line_s for sample in self.samples])

    @property
    def exit_s(self) -> float | None:
        return median([sample.exit_s for sample in self.samples])


def measure_local(rounds: int, rank_counts: Sequence[int]) -> Part:
    """Raises BenchmarkError."""
    cases = _cases(rank_counts)
    title = f"local ranks, median of {rounds} rounds; {machine_line()}"
    for number in range(-1, rounds):  # the first round only warms the caches
        for case in cases:
            progress(f"local, round {number + 1} of {rounds}: {case.name}")
            sample = measure(case.argv, peers.environ(**case.environ), case.num_ranks)
            if number >= 0:
                case.samples.append(sample)
    for case in cases:
        if case.num_ranks and case.name != BARE:
            case.cost = launcher_cost(case.argv, peers.environ(**case.environ), case.num_ranks)
    return Part("local", [_table(cases, title)], [], [asdict(case) for case in cases])


def _cases(rank_counts: Sequence[int]) -> list[Case]:
    python = sys.executable
    cases = [
        Case("python -c pass", [python, "-c", "pass"], 0),
        Case("dslaunch --help", [peers.DSLAUNCH, "--help"], 0),
        Case("dslaunch --dry_run", [peers.DSLAUNCH, "--num_gpus", "8", "--dry_run", PAYLOAD], 0),
    ]
    for n in rank_counts:
        # No launcher at all: what n interpreters cost on this machine.
        start_all = f"for i in $(seq {n}); do {shlex.join([python, PAYLOAD])} & done; wait"
        cases.append(Case(BARE, ["sh", "-c", start_all], n))
        cases.append(Case("dslaunch", [peers.DSLAUNCH, "--num_gpus", str(n), PAYLOAD], n))
        cases += _peers(n)
    return cases


def _peers(n: int) -> list[Case]:
    cases = []
    if torchrun := peers.find("torchrun"):
        cases.append(Case("torchrun", [torchrun, "--standalone", "--nproc-per-node", str(n), PAYLOAD], n))
    if mpirun := peers.open_mpi():
        options = ["--map-by", ":OVERSUBSCRIBE", "-n", str(n)]
        cases.append(Case("mpirun", [*mpirun, *options, sys.executable, PAYLOAD], n))
    if deepspeed := peers.find("deepspeed"):
        options = ["--hostfile", "/nonexistent", "--num_gpus", str(n), "--no_local_rank"]
        cases.append(Case("deepspeed", [deepspeed, *options, PAYLOAD], n, peers.DEEPSPEED_ENVIRON))
    return cases


def _table(cases: Sequence[Case], title: str) -> Table:
    table = Table(Column("command", no_wrap=True), title=title)
    for heading in ("ranks", "first line", "all lines", "exit", "fastest exit", "CPU, all"):
        table.add_column(heading, justify="right")
    for heading in ("launcher's CPU", "its memory", "first line / ours", "exit / ours"):
        table.add_column(heading, justify="right")
    for case in cases:
        ours = next((c for c in cases if c.name == "dslaunch" and c.num_ranks == case.num_ranks), case)
        if case.name in (BARE, "python -c pass"):
            table.add_section()
        table.add_row(
            case.name,
            str(case.num_ranks or ""),
            seconds(case.first_s),
            seconds(median([sample.last_line_s for sample in case.samples])),
            seconds(case.exit_s),
            seconds(min(sample.exit_s for sample in case.samples)),
            seconds(median([sample.cpu_s for sample in case.samples])),
            seconds(case.cost.cpu_s if case.cost else None, 2),
            megabytes(case.cost.pss_bytes if case.cost else None),
            ratio(case.first_s, ours.first_s),
            ratio(case.exit_s, ours.exit_s) if case.num_ranks else "",
        )
    return table
