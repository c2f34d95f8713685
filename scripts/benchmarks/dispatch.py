"""Many hosts: from the command line to the last host's first line, and to the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Column, Table

from benchmarks import peers
from benchmarks.figures import Part, machine_line, median, megabytes, progress, ratio, seconds
from benchmarks.hosts import Cluster, cluster_prefix, pdsh_environ, why_impossible
from benchmarks.process_tree import Cost, Sample, launcher_cost, measure

RANK = str(Path(__file__).parent / "payload" / "rank.sh")
PDSH = "pdsh true"
LAUNCHERS = ("ssh", "openssh", "pdsh")


@dataclass(slots=True)
class Case:
    """One command on a number of hosts. `starts_ranks` is false where it only runs something silent."""

    name: str
    argv: list[str]
    num_hosts: int
    environ: dict[str, str] = field(default_factory=dict)
    starts_ranks: bool = True
    is_slow: bool = False
    samples: list[Sample] = field(default_factory=list)
    cost: Cost | None = None

    @property
    def last_line_s(self) -> float | None:
        return median([sample.last_line_s for sample in self.samples])

    @property
    def exit_s(self) -> float | None:
        return median([sample.exit_s for sample in self.samples])


def measure_dispatch(rounds: int, host_counts: Sequence[int]) -> Part:
    """Raises BenchmarkError and ClusterError."""
    if reason := why_impossible():
        return Part("dispatch", [], [f"dispatch over hosts is left out: {reason}"], [])
    if peers.find("pdsh") is None:
        return Part("dispatch", [], ["dispatch over hosts is left out: pdsh is not installed"], [])
    title = f"one rank on each of N sshd hosts, median of {rounds} rounds; {machine_line()}"
    with Cluster(cluster_prefix()) as cluster:
        cluster.up(max(host_counts), slots=1)
        cases = [case for n in host_counts for case in _cases(cluster, n)]
        for number in range(-1, rounds):  # the first round only warms the caches
            for case in cases:
                if not case.is_slow or number == 0:
                    progress(f"dispatch, round {number + 1} of {rounds}: {case.name} x {case.num_hosts}")
                    _sample(case, is_kept=number >= 0)
        for case in cases:
            if case.starts_ranks and not case.is_slow:
                case.cost = launcher_cost(case.argv, _environ(case), case.num_hosts, lambda: _agents(cluster))
    note = (
        "Hosts share this machine's cores: it adds up what all of them spend, and no network is waited for."
    )
    return Part("dispatch", [_table(cases, title)], [note], [asdict(case) for case in cases])


def _sample(case: Case, *, is_kept: bool) -> None:
    sample = measure(case.argv, _environ(case), case.num_hosts if case.starts_ranks else 0)
    if is_kept:
        case.samples.append(sample)


def _environ(case: Case) -> dict[str, str]:
    return {**peers.environ(), **case.environ}


def _cases(cluster: Cluster, n: int) -> list[Case]:
    """The floors first: what it takes to log in everywhere, and to start an interpreter there."""
    names = ",".join(cluster.workers[:n])
    pdsh = ["pdsh", "-w", names]
    each = f'for host in {names.replace(",", " ")}; do ssh -F {cluster.ssh_config} "$host" true & done; wait'
    environ = pdsh_environ(cluster)
    cases = [
        Case(PDSH, [*pdsh, "true"], n, environ, starts_ranks=False),
        Case("ssh true, all at once", ["sh", "-c", each], n, starts_ranks=False),
        Case("pdsh python -ISc pass", [*pdsh, f"{sys.executable} -ISc pass"], n, environ, starts_ranks=False),
    ]
    options = ["--hostfile", str(cluster.hostfile), "--num_nodes", str(n), "--no_python", "--no_local_rank"]
    for launcher in LAUNCHERS:
        way = ["--launcher", launcher, "--ssh_config", str(cluster.ssh_config)]
        cases.append(Case(f"dslaunch {launcher}", [peers.DSLAUNCH, *options, *way, RANK], n))
    if deepspeed := peers.find("deepspeed"):
        way = ["--launcher", "pdsh", "--master_addr", cluster.ip(cluster.workers[0])]
        argv = cluster.run_argv([deepspeed, *way, *options, RANK])  # its bare ssh must know the hosts
        cases.append(Case("deepspeed pdsh", argv, n, peers.DEEPSPEED_ENVIRON, is_slow=True))
    return cases


def _agents(cluster: Cluster) -> list[int]:
    """What runs on the hosts, ranks left out; sshd's own processes are the hosts'."""
    ranks = f"/bin/sh {RANK}"
    found = [item.process for item in cluster.user_procs()]
    return [process.pid for process in found if not process.command.startswith(ranks)]


def _table(cases: Sequence[Case], title: str) -> Table:
    table = Table(Column("command", no_wrap=True), title=title)
    for heading in ("hosts", "runs", "last first line", "exit", "fastest exit"):
        table.add_column(heading, justify="right")
    for heading in ("CPU here", "its and agents' CPU", "and memory", "line / pdsh true", "exit / pdsh true"):
        table.add_column(heading, justify="right")
    for case in cases:
        plain = next(c for c in cases if c.name == PDSH and c.num_hosts == case.num_hosts)
        if case is plain:
            table.add_section()
        table.add_row(
            case.name,
            str(case.num_hosts),
            str(len(case.samples)),
            seconds(case.last_line_s),
            seconds(case.exit_s),
            seconds(min(sample.exit_s for sample in case.samples)),
            seconds(median([sample.cpu_s for sample in case.samples]), 2),
            seconds(case.cost.cpu_s if case.cost else None, 2),
            megabytes(case.cost.pss_bytes if case.cost else None),
            ratio(case.last_line_s, plain.exit_s),
            ratio(case.exit_s, plain.exit_s),
        )
    return table
