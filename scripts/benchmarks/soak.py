"""Whether anything grows: many launches in a row, one launch with many restarts, one with many log lines."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.table import Column, Table

from benchmarks import figures, peers
from benchmarks.hosts import Cluster, cluster_prefix, why_impossible
from benchmarks.marked import MARKER, Marked, parent
from benchmarks.process_tree import BenchmarkError, process_tree, pss_bytes
from dslaunch.runner_backends.group import bound_to_us

_PAYLOADS = Path(__file__).parent / "payload"
_DSLAUNCH = (peers.DSLAUNCH, "--master_port", str(20_000 + os.getpid() % 9_000))
"""On a port of its own: others on this machine may launch at the same moment."""
_RANKS = 4
_LINES_A_SECOND = 100_000
_POLL_S = 0.2
_FADE_S = 5.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What is there at one moment: of the launcher and its agents, or of what launches have left.

    Attributes:
        at: how much of the work was done, in its own unit.
        processes, sockets, files: counts; sockets without those in TIME_WAIT, files in TMPDIR.
        fds: open descriptors of launcher and agents.
        memory_bytes: their proportional set size.
    """

    at: int
    processes: int
    sockets: int
    files: int
    fds: int = 0
    memory_bytes: int = 0


@click.command(name="soak", help=__doc__)
@click.option("--launches", type=click.IntRange(min=2), default=200, show_default=True, help="In a row.")
@click.option("--restarts", type=click.IntRange(min=2), default=100, show_default=True, help="Of one job.")
@click.option(
    "--lines", type=click.IntRange(min=100), default=10_000_000, show_default=True, help="Of one job."
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write every count to this file.")
def command(launches: int, restarts: int, lines: int, json_path: str | None) -> None:
    sights: dict[str, list[Sight]] = {}
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        soak = _Soak(Path(folder))
        jobs: dict[str, Callable[[], list[Sight]]] = {
            f"{launches} launches, 4 local ranks": lambda: soak.launches(launches, None),
            f"{launches} launches, 2 hosts over ssh": lambda: soak.launches_over_hosts(launches),
            f"1 launch, {restarts} restarts": lambda: soak.restarts(restarts),
            f"1 launch, {lines:,} lines": lambda: soak.lines(lines),
        }
        for name, run in jobs.items():
            try:
                sights[name] = run()
            except (BenchmarkError, subprocess.SubprocessError) as error:
                notes.append(f"{name}: {error}")
    figures.progress("")
    figures.Part("soak", [_table(sights)], notes, []).print()
    if json_path is not None:
        record = {name: [asdict(sight) for sight in seen] for name, seen in sights.items()}
        Path(json_path).write_text(json.dumps({"machine": figures.machine(), **record}, indent=2) + "\n")


class _Soak:
    """Runs the jobs; everything temporary of theirs is in `folder`, where it is counted."""

    def __init__(self, folder: Path) -> None:
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        self._job = f"soak-{os.getpid()}"
        self._environ = {**peers.environ(TMPDIR=str(self._temporary)), MARKER: self._job}

    def launches(self, number: int, cluster: Cluster | None) -> list[Sight]:
        """What is left after the first tenth of them, and after all."""
        hosts = [] if cluster is None else _over(cluster)
        argv = [*_DSLAUNCH, "-q", *(hosts or ["--num_gpus", str(_RANKS)]), str(_PAYLOADS / "rank.py")]
        names = {} if cluster is None else {f"/run/netns/{cluster.layout.netns(h)}": h for h in cluster.hosts}
        marked = Marked(self._job, names)
        sights = []
        for i in range(1, number + 1):
            figures.progress(f"launch {i} of {number}")
            subprocess.run(
                bound_to_us(tuple(argv)),
                env=self._environ,
                stdout=subprocess.DEVNULL,
                check=True,
                timeout=120,
            )
            if i in (max(1, number // 10), number):
                sights.append(self._left(i, marked, cluster))
        return sights

    def launches_over_hosts(self, number: int) -> list[Sight]:
        reason = why_impossible()
        if reason is not None:
            raise BenchmarkError(f"left out: {reason}")
        with Cluster(cluster_prefix()) as cluster:
            cluster.up(2)
            return self.launches(number, cluster)

    def _left(self, at: int, marked: Marked, cluster: Cluster | None) -> Sight:
        """After a moment in which a server may notice that its client is gone."""
        deadline = time.monotonic() + _FADE_S
        while (found := marked.find()) and time.monotonic() < deadline:
            time.sleep(0.05)
        sockets = 0 if cluster is None else sum(_num_sockets(cluster, host) for host in cluster.hosts)
        return Sight(at, len(found), sockets, self._num_files())

    def _num_files(self) -> int:
        return sum(len(files) + len(folders) for _, folders, files in os.walk(self._temporary))

    def restarts(self, number: int) -> list[Sight]:
        options = ["--num_gpus", "2", "--max_restarts", str(number), "--no_local_rank"]
        argv = [*_DSLAUNCH, *options, str(_PAYLOADS / "fails_again.py"), str(number)]
        return self._watched(argv, b"dslaunch: restart ", number, with_agents=False)

    def lines(self, number: int) -> list[Sight]:
        """Slowly enough that none has to be left out: that is what another benchmark looks at."""
        options = ["-q", "--num_gpus", str(_RANKS), "--no_local_rank"]
        words = [str(number // _RANKS), str(_LINES_A_SECOND // _RANKS)]
        argv = [*_DSLAUNCH, *options, str(_PAYLOADS / "many_lines.py"), *words]
        return self._watched(argv, b"xxx\n", number // _RANKS * _RANKS, with_agents=True)

    def _watched(self, argv: Sequence[str], word: bytes, number: int, *, with_agents: bool) -> list[Sight]:
        """After a tenth of the work, and at its end: `word` is said `number` times."""
        process = subprocess.Popen(
            bound_to_us(tuple(argv)),
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        counter = _Counter(process, word)
        sights: list[Sight] = []
        while process.poll() is None:
            figures.progress(f"{counter.num_seen} of {number}")
            with contextlib.suppress(OSError, BenchmarkError):  # something has just ended
                seen = self._seen(counter.num_seen, process.pid, with_agents)
                if seen.at >= number // 10 and seen.at < number:
                    sights = [*sights[:1], seen]
            time.sleep(_POLL_S)
        counter.join()
        if process.returncode != 0 or counter.num_seen != number:
            raise BenchmarkError(f"exit code {process.returncode}, {counter.num_seen} of {number}")
        return sights

    def _seen(self, at: int, pid: int, with_agents: bool) -> Sight:
        tree = list(process_tree(pid))
        own = [pid, *(child for child in tree if parent(child) == pid)] if with_agents else [pid]
        links = [link for one in own for link in _links(one)]
        sockets = sum(link.startswith("socket:") for link in links)
        memory_bytes = sum(pss_bytes(one) for one in own)
        return Sight(at, len(tree), sockets, self._num_files(), len(links), memory_bytes)


class _Counter(threading.Thread):
    """Reads what a process writes, and counts how often a word is in it."""

    def __init__(self, process: subprocess.Popen[bytes], word: bytes) -> None:
        super().__init__(daemon=True)
        assert process.stdout is not None
        self._pipe, self._word = process.stdout, word
        self.num_seen = 0
        self.start()

    def run(self) -> None:
        rest = b""
        with self._pipe:
            while data := os.read(self._pipe.fileno(), 1 << 20):
                data = rest + data
                self.num_seen += data.count(self._word)
                cut = data.rfind(self._word)
                tail = data if cut < 0 else data[cut + len(self._word) :]
                rest = tail[1 - len(self._word) :]


def _links(pid: int) -> list[str]:
    """What the descriptors of a process lead to."""
    folder = Path(f"/proc/{pid}/fd")
    return [os.readlink(link) for link in folder.iterdir()]


def _over(cluster: Cluster) -> list[str]:
    return ["--hostfile", str(cluster.hostfile), "--ssh_config", str(cluster.ssh_config)]


def _num_sockets(cluster: Cluster, host: str) -> int:
    """TCP sockets of a host that are not merely fading away: TIME_WAIT is 06 in /proc/net/tcp."""
    argv = cluster.exec_argv(host, ["cat", "/proc/net/tcp", "/proc/net/tcp6"])
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    states = [line.split()[3] for line in said.splitlines() if ":" in line and "local" not in line]
    return sum(state != "06" for state in states)


def _table(sights: dict[str, list[Sight]]) -> Table:
    table = Table(Column("job", no_wrap=True), title=f"soak; {figures.machine_line()}")
    for heading in ("done", "processes", "sockets", "files", "open fds", "memory (PSS)"):
        table.add_column(heading, justify="right")
    for name, seen in sights.items():
        table.add_section()
        for sight in seen:
            table.add_row(
                name if sight is seen[0] else "",
                f"{sight.at:,}",
                str(sight.processes),
                str(sight.sockets),
                str(sight.files),
                str(sight.fds or ""),
                figures.megabytes(sight.memory_bytes or None),
            )
    return table
