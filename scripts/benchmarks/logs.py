"""Ranks that write as fast as they can, into a pipe: how fast it passes, what is torn, who is blocked."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Column, Table

from benchmarks import peers
from benchmarks.figures import Part, machine_line, median, megabytes, progress, ratio, seconds
from benchmarks.process_tree import TIMEOUT_S, BenchmarkError, process_tree, pss_bytes

PAYLOAD = str(Path(__file__).parent / "payload" / "flood.py")
NUM_RANKS, NUM_LINES, WIDTH = 4, 100_000, 100
BARE = "processes alone | cat"
_INTACT = re.compile(rb"([^x]{0,60}?)LOG (\d{3}) (\d{7}) x{83}")
_FOLDED = re.compile(rb"(?P<first>\d+)(?:-(?P<last>\d+))?")
_SAMPLE_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class LogSample:
    """One run.

    Attributes:
        pass_s: from the first rank's first write to the end of the launcher.
        write_s: the longest that a rank spent writing.
        cpu_s: user and system time of launcher and agents, the ranks' own left out.
        num_torn: lines that are not one whole line of one rank.
        num_missing: lines that did not come through whole.
    """

    pass_s: float
    write_s: float
    cpu_s: float
    num_torn: int
    num_missing: int

    @property
    def megabytes_per_s(self) -> float:
        return NUM_RANKS * NUM_LINES * WIDTH / 1e6 / self.pass_s


@dataclass(slots=True)
class Case:
    """One command; `argv` leads from a scratch folder to its words. `is_folded` where ranks print alike."""

    name: str
    argv: Callable[[str], list[str]]
    is_folded: bool = False
    samples: list[LogSample] = field(default_factory=list)
    peak_pss_bytes: int = 0

    def median(self, name: str) -> float | None:
        return median([getattr(sample, name) for sample in self.samples])

    def record(self) -> dict[str, object]:
        samples = [asdict(sample) for sample in self.samples]
        return {"name": self.name, "peak_pss_bytes": self.peak_pss_bytes, "samples": samples}


def measure_logs(rounds: int) -> Part:
    """Raises BenchmarkError."""
    cases = _cases()
    what = f"{NUM_RANKS} ranks x {NUM_LINES} lines of {WIDTH} bytes"
    title = f"{what}, median of {rounds} rounds; {machine_line()}"
    for number in range(-1, rounds):  # the first round warms the caches, and is where memory is watched
        for case in cases:
            progress(f"logs, round {number + 1} of {rounds}: {case.name}")
            sample = _measure(case, watches_memory=number < 0)
            if number >= 0:
                case.samples.append(sample)
    return Part("logs", [_table(cases, title)], [], [case.record() for case in cases])


def _cases() -> list[Case]:
    def words(folder: str, kind: str = "own") -> list[str]:
        return [PAYLOAD, folder, str(NUM_LINES), kind]

    def bare(folder: str) -> list[str]:
        start = f"RANK=$rank {sys.executable} {' '.join(words(folder))} &"
        return ["sh", "-c", f"(for rank in $(seq 0 {NUM_RANKS - 1}); do {start} done; wait) | cat"]

    ours = [peers.DSLAUNCH, "--num_gpus", str(NUM_RANKS), "--no_local_rank"]
    cases = [
        Case(BARE, bare),
        Case("dslaunch", lambda folder: [*ours, *words(folder)]),
        Case("dslaunch --fold", lambda folder: [*ours, "--fold", *words(folder, "same")], is_folded=True),
        Case("dslaunch --log_dir", lambda folder: [*ours, "--log_dir", f"{folder}/logs", *words(folder)]),
    ]
    if found := peers.find("torchrun"):
        torchrun = [found, "--standalone", "--nproc-per-node", str(NUM_RANKS)]
        tee = [*torchrun, "--tee", "3", "--log-dir"]
        cases.append(Case("torchrun", lambda folder: [*torchrun, *words(folder)]))
        cases.append(Case("torchrun --tee 3", lambda folder: [*tee, f"{folder}/logs", *words(folder)]))
    if mpirun := peers.open_mpi():
        plain = [*mpirun, "--map-by", ":OVERSUBSCRIBE", "-n", str(NUM_RANKS)]
        tagged = [*plain, "--tag-output", sys.executable]
        cases.append(Case("mpirun", lambda folder: [*plain, sys.executable, *words(folder)]))
        cases.append(Case("mpirun --tag-output", lambda folder: [*tagged, *words(folder)]))
    if deepspeed := peers.find("deepspeed"):
        options = ["--hostfile", "/nonexistent", "--num_gpus", str(NUM_RANKS), "--no_local_rank"]
        cases.append(Case("deepspeed", lambda folder: [deepspeed, *options, *words(folder)]))
    return cases


def _measure(case: Case, *, watches_memory: bool) -> LogSample:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as stderr:
        variables = {**peers.environ(), **(peers.DEEPSPEED_ENVIRON if case.name == "deepspeed" else {})}
        process = subprocess.Popen(
            case.argv(folder), env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
        )
        chunks: list[bytes] = []
        reader = threading.Thread(target=_read, args=(process, chunks), daemon=True)
        watched = _memory_watched(case, process.pid, folder) if watches_memory else contextlib.nullcontext()
        timer = threading.Timer(TIMEOUT_S, process.terminate)
        timer.start()
        with watched:
            reader.start()
            _, status, usage = os.wait4(process.pid, 0)
        ended_at = time.monotonic()
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        reader.join(10)
        ranks = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
        if process.returncode != 0 or len(ranks) != NUM_RANKS:
            stderr.seek(0)
            said = stderr.read().decode(errors="replace")[-2000:]
            raise BenchmarkError(f"{case.name}: exit code {process.returncode}, {len(ranks)} ranks\n{said}")
    num_whole, num_torn = _count(b"".join(chunks), case)
    return LogSample(
        pass_s=ended_at - min(rank["started_at"] for rank in ranks),
        write_s=max(rank["write_s"] for rank in ranks),
        cpu_s=usage.ru_utime + usage.ru_stime - sum(rank["cpu_s"] for rank in ranks),
        num_torn=num_torn,
        num_missing=NUM_RANKS * NUM_LINES - num_whole,
    )


def _read(process: subprocess.Popen[bytes], chunks: list[bytes]) -> None:
    assert process.stdout is not None
    while chunk := os.read(process.stdout.fileno(), 1 << 20):
        chunks.append(chunk)
    process.stdout.close()


def _count(data: bytes, case: Case) -> tuple[int, int]:
    """Whole lines, each counted once for every rank it stands for; and lines that are none."""
    num_whole = num_torn = 0
    seen = set()
    for line in data.split(b"\n"):
        whole = _INTACT.fullmatch(line)
        if whole is None:
            num_torn += b"LOG" in line or b"xx" in line
            continue
        key = whole[0] if case.is_folded else (whole[2], whole[3])
        if key not in seen:
            seen.add(key)
            num_whole += _num_ranks(whole[1]) if case.is_folded else 1
    return num_whole, num_torn


def _num_ranks(prefix: bytes) -> int:
    """Of `[localhost:0-2,3] `."""
    _, _, ranks = prefix.rpartition(b":")
    return sum(
        int(found["last"] or found["first"]) - int(found["first"]) + 1 for found in _FOLDED.finditer(ranks)
    )


@contextlib.contextmanager
def _memory_watched(case: Case, pid: int, folder: str) -> Iterator[None]:
    """Keep the highest sum of what launcher and agents hold while all ranks run."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SAMPLE_EVERY_S):
            ranks = {int(path.read_text() or 0) for path in Path(folder).glob("*.pid")}
            if len(ranks) == NUM_RANKS:
                with contextlib.suppress(OSError, ValueError):  # one has just ended
                    held = sum(pss_bytes(p) for p in process_tree(pid) if p not in ranks)
                    case.peak_pss_bytes = max(case.peak_pss_bytes, held)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _table(cases: Sequence[Case], title: str) -> Table:
    table = Table(Column("command", no_wrap=True), title=title)
    for heading in ("MB/s", "slowest", "torn", "missing", "ranks write", "launcher's CPU", "its memory"):
        table.add_column(heading, justify="right")
    table.add_column("ours / this", justify="right")
    ours = next(case for case in cases if case.name == "dslaunch")
    for case in cases:
        table.add_row(
            case.name,
            f"{case.median('megabytes_per_s'):.1f}",
            f"{min(sample.megabytes_per_s for sample in case.samples):.1f}",
            "/".join(str(sample.num_torn) for sample in case.samples),
            f"{statistics.median(sample.num_missing for sample in case.samples):.0f}",
            seconds(case.median("write_s"), 2),
            seconds(case.median("cpu_s"), 2),
            megabytes(case.peak_pss_bytes),
            ratio(ours.median("megabytes_per_s"), case.median("megabytes_per_s")),
        )
    return table
