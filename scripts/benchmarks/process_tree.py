"""Run a command and measure it with everything it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

RANK_LINE = b"RANKLINE "
"""How a line of the payload begins; the rank's process id follows."""
TIMEOUT_S = 120.0
_END_TIMEOUT_S = 10.0


class BenchmarkError(Exception):
    """A command that was to be measured did not do what it was to do."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a command.

    Attributes:
        first_line_s: from exec to the first rank's line; None where the command runs no ranks.
        last_line_s: to the last rank's line.
        exit_s: to the end of the command.
        cpu_s: user and system time of the whole tree, ranks included.
        max_rss_bytes: of the largest process in the tree; never less than the caller's own.
    """

    first_line_s: float | None
    last_line_s: float | None
    exit_s: float
    cpu_s: float
    max_rss_bytes: int


def measure(argv: Sequence[str], environ: Mapping[str, str], num_ranks: int) -> Sample:
    """Run `argv` to its end. BenchmarkError unless it exits with 0 after one line of each of `num_ranks`."""
    with _running(argv, environ) as run:
        _, status, usage = os.wait4(run.process.pid, 0)
        exit_s = time.monotonic() - run.started_at
        run.process.returncode = os.waitstatus_to_exitcode(status)
        run.check(num_ranks)
        times = [line.at_s for line in run.lines]
    return Sample(
        first_line_s=min(times, default=None),
        last_line_s=max(times, default=None),
        exit_s=exit_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        max_rss_bytes=usage.ru_maxrss * 1024,
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a launcher and its agents take, ranks left out, once all ranks are up.

    Attributes:
        pss_bytes: proportional set size, so that shared pages count once.
        cpu_s: user and system time until then, of processes that have ended too.
    """

    pss_bytes: int
    cpu_s: float


def launcher_cost(
    argv: Sequence[str],
    environ: Mapping[str, str],
    num_ranks: int,
    agents: Callable[[], Sequence[int]] | None = None,
) -> Cost:
    """What it costs to have the ranks up and waiting.

    The path of a FIFO is appended to `argv`: the payload waits for a byte from it. `agents` tells the
    pids of agents on other hosts, whose ranks are on those hosts too.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "go")
        os.mkfifo(path)
        fifo = os.open(path, os.O_RDWR)  # both ends, so that opening waits for nobody
        try:
            with _running([*argv, path], environ) as run:
                ranks = {line.pid for line in run.wait_for_lines(num_ranks)}
                if agents is None:
                    pids = [pid for pid in process_tree(run.process.pid) if pid not in ranks]
                else:
                    pids = [*process_tree(run.process.pid), *agents()]
                cost = Cost(sum(pss_bytes(pid) for pid in pids), sum(_cpu_s(pid) for pid in pids))
                os.write(fifo, b".\n" * num_ranks)
                run.process.wait(TIMEOUT_S)
                run.check(num_ranks)
        finally:
            os.close(fifo)
    return cost


@dataclass(frozen=True, slots=True)
class _RankLine:
    at_s: float
    pid: int


class _Run:
    """A started command whose rank lines are noted by a thread."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], stderr: IO[bytes]) -> None:
        self._argv = argv
        self._stderr = stderr
        self.lines: list[_RankLine] = []
        self._arrived = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._timer = threading.Timer(TIMEOUT_S, self._kill)
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
        self._reader.start()
        self._timer.start()

    def end(self) -> None:
        """End what is left of the command."""
        self._timer.cancel()
        if self.process.returncode is None:
            # Politely first: where ranks have sessions of their own only their launcher can end them.
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_TIMEOUT_S)
            self._kill()
            self.process.wait()

    def wait_for_lines(self, num_lines: int) -> list[_RankLine]:
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.lines) >= num_lines, TIMEOUT_S):
                raise self._error(f"{len(self.lines)} of {num_lines} ranks came up")
            return list(self.lines)

    def check(self, num_lines: int) -> None:
        """Raise BenchmarkError unless all went well."""
        self._reader.join(_END_TIMEOUT_S)
        if self.process.returncode != 0 or len(self.lines) != num_lines:
            raise self._error(f"exit code {self.process.returncode}, {len(self.lines)} of {num_lines} ranks")

    def _error(self, what: str) -> BenchmarkError:
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace")[-2000:]
        return BenchmarkError(f"{' '.join(self._argv)}: {what}\n{said}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for line in pipe:
                at_s = time.monotonic() - self.started_at
                for part in line.split(RANK_LINE)[1:]:  # a launcher may glue lines together, or prefix them
                    with self._arrived:
                        self.lines.append(_RankLine(at_s, int(part.split()[0])))
                        self._arrived.notify()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _running(argv: Sequence[str], environ: Mapping[str, str]) -> Iterator[_Run]:
    with tempfile.TemporaryFile() as stderr:
        run = _Run(argv, environ, stderr)
        try:
            yield run
        finally:
            run.end()


def process_tree(pid: int) -> Iterator[int]:
    """The process and all that descend from it. OSError where one is gone."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from process_tree(int(child))


def pss_bytes(pid: int) -> int:
    """Proportional set size of a process. OSError where it is gone."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise BenchmarkError(f"no Pss in /proc/{pid}/smaps_rollup")


def _cpu_s(pid: int) -> float:
    """User and system time of a process and of those it has waited for."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    ticks = stat[stat.rindex(")") + 2 :].split()[11:15]  # fields 14 to 17 of proc_pid_stat(5)
    return sum(int(tick) for tick in ticks) / os.sysconf("SC_CLK_TCK")
