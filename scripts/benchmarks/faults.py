"""What a launcher leaves behind: one fault at a time, on this machine and over sshd hosts.

Ranks ignore SIGTERM unless the row says otherwise; with `--manners mixed` some stand stopped and some flood
their output instead. Each has a child, forked twice, in a session of its own.
dslaunch and torchrun are told to kill after a grace of 1 s; mpirun and deepspeed cannot be told.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from rich.table import Column, Table

from benchmarks import figures
from benchmarks.fault_run import WATCH_S, FaultRun, Outcome
from benchmarks.fault_subjects import Scene, Subject, subjects
from benchmarks.hosts import Cluster, cluster_prefix, why_impossible
from benchmarks.process_tree import BenchmarkError
from dslaunch.launcher.ctl.chaos.faults import Fault

_MAX_WATCHED = 12
"""Jobs that hang are watched beside the next; each has hosts of its own."""


@dataclass(slots=True)
class Cell:
    """One launcher under one fault."""

    subject: Subject
    fault: Fault
    outcomes: list[Outcome] = field(default_factory=list)

    def record(self) -> dict[str, object]:
        outcomes = [asdict(outcome) for outcome in self.outcomes]
        return {"launcher": self.subject.name, "fault": self.fault.value, "outcomes": outcomes}


@click.command(name="faults", help=__doc__)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each of ours."
)
@click.option(
    "--peer_rounds", type=click.IntRange(min=0), default=1, show_default=True, help="Runs of the others."
)
@click.option(
    "--hosts", "num_hosts", type=click.IntRange(min=2), default=2, show_default=True, help="Of 2 ranks each."
)
@click.option(
    "--only", "names", multiple=True, help="Launchers whose name begins so: dslaunch, 'mpirun hosts'."
)
@click.option("--fault", "wanted", multiple=True, help="Only rows that begin so: 'rank', 'host cut'.")
@click.option(
    "--manners",
    type=click.Choice(["ignores", "mixed"]),
    default="ignores",
    show_default=True,
    help="Of ranks.",
)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False), help="Write every outcome to this file."
)
def command(
    rounds: int,
    peer_rounds: int,
    num_hosts: int,
    names: Sequence[str],
    wanted: Sequence[str],
    manners: str,
    json_path: str | None,
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell put us in the background
    reason = why_impossible()
    chosen = [
        s for s in subjects() if s.name.startswith(tuple(names or [""])) and not (reason and s.over_hosts)
    ]
    faults = [fault for fault in Fault if fault.value.startswith(tuple(wanted or [""]))]
    cells = [Cell(subject, fault) for fault in faults for subject in chosen if subject.suffers(fault)]
    record = {"benchmark": "faults", "num_hosts": num_hosts, "machine": figures.machine()}
    title = (
        f"{num_hosts} hosts x 2 ranks, or 4 local ones; SIGTERM {manners}; median of {rounds} rounds, "
        f"peers {peer_rounds}; "
        f"{figures.machine_line()}"
    )
    notes = [f"rows over hosts are left out: {reason}"] if reason else []
    notes += _fill(cells, num_hosts, _schedule(cells, rounds, peer_rounds), manners)
    figures.progress("")
    figures.Part("faults", [_table(cells, title)], notes, []).print()
    if json_path is not None:
        record["cells"] = [cell.record() for cell in cells]
        Path(json_path).write_text(json.dumps(record, indent=2) + "\n")


class _Clusters:
    """As many clusters as are in use at once; idle ones are used again."""

    def __init__(self, num_hosts: int) -> None:
        self._num_hosts = num_hosts
        self._all: list[Cluster] = []
        self._idle: list[Cluster] = []

    def take(self) -> Cluster:
        if self._idle:
            return self._idle.pop()
        cluster = Cluster(cluster_prefix(len(self._all)))
        self._all.append(cluster)
        cluster.up(self._num_hosts)
        return cluster

    def give_back(self, cluster: Cluster) -> None:
        self._idle.append(cluster)

    def down(self) -> None:
        for cluster in self._all:
            cluster.down()


def _fill(
    cells: Sequence[Cell], num_hosts: int, schedule: Sequence[tuple[int, Cell]], manners: str
) -> list[str]:
    """Run everything; what could not be run is told."""
    notes: list[str] = []
    watched: list[Future[None]] = []
    clusters = _Clusters(num_hosts)
    try:
        with ThreadPoolExecutor(_MAX_WATCHED) as watchers:
            for number, cell in schedule:
                figures.progress(f"round {number + 1}: {cell.fault.value}: {cell.subject.name}")
                cluster = clusters.take() if cell.subject.over_hosts else None
                own_manners = "heeds" if cell.fault is Fault.EXIT_HEEDED else manners
                job = f"{os.getpid()}-{number}-{cells.index(cell)}"
                run = FaultRun(cell.subject, cell.fault, Scene(cluster, job, own_manners))
                try:
                    run.start()
                    run.inflict()
                except (BenchmarkError, OSError, ValueError) as error:
                    notes.append(f"{cell.subject.name}, {cell.fault.value}: {error}")
                    run.close()
                    continue
                if run.watch(closely=True):
                    _end(run, cell, cluster, clusters)
                else:
                    watched.append(watchers.submit(_watch_on, run, cell, cluster, clusters))
            figures.progress("waiting for those that hang")
        for future in watched:
            future.result()
    finally:
        clusters.down()
    return notes


def _schedule(cells: Sequence[Cell], rounds: int, peer_rounds: int) -> Sequence[tuple[int, Cell]]:
    return [
        (number, cell)
        for number in range(max(rounds, peer_rounds))
        for cell in cells
        if number < (peer_rounds if cell.subject.is_peer else rounds)
    ]


def _watch_on(run: FaultRun, cell: Cell, cluster: Cluster | None, clusters: _Clusters) -> None:
    run.watch(closely=False)
    _end(run, cell, cluster, clusters)


def _end(run: FaultRun, cell: Cell, cluster: Cluster | None, clusters: _Clusters) -> None:
    cell.outcomes.append(run.outcome())
    run.close()
    if cluster is not None:
        clusters.give_back(cluster)


def _table(cells: Sequence[Cell], title: str) -> Table:
    table = Table(Column("fault", no_wrap=True), Column("launcher", no_wrap=True), title=title)
    for heading in ("runs", "CLI ends", "all gone", "on the cut host", "exit code", "cause named", "orphans"):
        table.add_column(heading, justify="right")
    before = None
    for cell in (cell for cell in cells if cell.outcomes):
        if cell.fault is not before:
            table.add_section()
        outcomes = cell.outcomes
        is_cut = cell.fault is Fault.HOST_CUT
        table.add_row(
            "" if cell.fault is before else cell.fault.value,
            cell.subject.name,
            str(len(outcomes)),
            _time([outcome.exit_s for outcome in outcomes]),
            _time([outcome.gone_s for outcome in outcomes]),
            _time([outcome.cut_gone_s for outcome in outcomes]) if is_cut else "",
            "/".join(sorted({"none" if o.exit_code is None else str(o.exit_code) for o in outcomes})),
            _named(outcomes),
            f"{statistics.median(outcome.num_orphans for outcome in outcomes):.0f}",
        )
        before = cell.fault
    return table


def _time(values: Sequence[float | None]) -> str:
    """The median, where a hang counts as longer than any other."""
    middle = sorted(values, key=lambda value: WATCH_S if value is None else value)[len(values) // 2]
    return f"> {WATCH_S:.0f} s" if middle is None else f"{middle:.2f} s"


def _named(outcomes: Sequence[Outcome]) -> str:
    known = [outcome.is_named for outcome in outcomes if outcome.is_named is not None]
    if not known:
        return "-"
    if len(set(known)) == 1:
        return "yes" if known[0] else "no"
    return f"{sum(known)} of {len(known)}"
