"""`dslaunchctl ps`, `top`, `logs`, `stack`, `signal` and `kill`: what is asked of running jobs, and shown."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from dslaunch.hostfile import fold_names
from dslaunch.launcher.control.client import JobConnection, Reply
from dslaunch.launcher.control.registry import JobEntry, find_job, running_jobs
from dslaunch.launcher.errors import UsageError

_REFRESH_S = 1.0
_CLEAR_SCREEN = "\x1b[H\x1b[2J\x1b[3J"
_MAX_RANK = 1 << 20


def ps_text(word: str | None) -> str:
    """The ranks of one job, or all jobs of this user."""
    if word is not None:
        return _ranks_table(_state(find_job(word)), is_live=False)
    rows = [_job_row(entry) for entry in running_jobs()]
    return _table(("ID", "NAME", "STATE", "RANKS", "HOSTS", "SINCE", "PID", "SCRIPT"), rows)


def ps_record(word: str | None) -> object:
    """The same as values."""
    entries = running_jobs() if word is None else [find_job(word)]
    return [
        {"id": entry.id, "name": entry.name, "run_dir": entry.run_dir, **_state(entry)} for entry in entries
    ]


def _job_row(entry: JobEntry) -> tuple[str, ...]:
    since = _time(time.time() - entry.started_at)
    try:
        state = _state(entry)
    except UsageError:
        return (entry.id, entry.name, "no answer", "", "", since, str(entry.pid), entry.script)
    ranks = _ranks(state)
    hosts = fold_names(dict.fromkeys(str(rank["host"]) for rank in ranks))
    again = f" (attempt {state['attempt']})" if state["attempt"] else ""
    how = f"{state['state']}{again}"
    return (entry.id, entry.name, how, str(len(ranks)), hosts, since, str(entry.pid), entry.script)


def top(word: str | None, *, once: bool) -> None:
    """Every rank's state, again and again until the job ends."""
    entry = find_job(word)
    is_live = sys.stdout.isatty() and not once
    while True:
        try:
            state = _state(entry)
        except UsageError:
            if not is_live:
                raise
            return  # it has ended
        text = f"{entry.id} {entry.name}: {state['state']}\n{_ranks_table(state, is_live=True)}"
        click.echo(_CLEAR_SCREEN + text if is_live else text)
        if not is_live:
            return
        time.sleep(_REFRESH_S)


def logs(word: str | None, ranks: str | None, num_lines: int, *, follow: bool) -> None:
    """Lines of ranks, of a running job or from the folder of one that has ended."""
    chosen = None if ranks is None else _listed(ranks)
    if word is not None and not _runs(word) and (Path(word) / "logs").is_dir():
        _show_files(Path(word) / "logs", chosen, num_lines)
        return
    with JobConnection(find_job(word)) as job:
        job.send(do="logs", ranks=chosen, num_lines=num_lines, follow=follow)
        prefixed = chosen is None or len(chosen) > 1
        for reply in job.listen():
            match reply:
                case {"rank": int(rank), "stream": int(stream), "line": str(line)}:
                    prefix = f"[{rank}] " if prefixed else ""
                    _echo(prefix + line, err=stream == 2)
                case {"missed": int(missed)}:
                    _echo(f"dslaunchctl: {missed} lines were not shown, this terminal is too slow", err=True)
                case {"ok": True}:
                    return
                case _:
                    pass


def _runs(word: str) -> bool:
    return any(
        entry.run_dir and os.path.realpath(word) == os.path.realpath(entry.run_dir)
        for entry in running_jobs()
    )


def _show_files(folder: Path, ranks: Sequence[int] | None, num_lines: int) -> None:
    there = {path.name.removeprefix("rank").removesuffix(".log"): path for path in folder.glob("rank*.log")}
    for rank in sorted(int(name) for name in there if name.isdecimal()):
        if ranks is not None and rank not in ranks:
            continue
        lines = there[str(rank)].read_bytes().split(b"\n")[:-1]
        for line in lines[max(0, len(lines) - num_lines) :]:
            prefix = f"[{rank}] " if ranks is None or len(ranks) > 1 else ""
            _echo(prefix + line.decode("utf-8", "surrogateescape"), err=False)


def stack(word: str | None, ranks: str | None, *, with_flight: bool) -> None:
    """Where all ranks are, folded, and what waits in NCCL; or all threads of some."""
    chosen = None if ranks is None else _listed(ranks)
    with JobConnection(find_job(word)) as job:
        reply = job.ask(do="stack", flight=with_flight)
    if chosen is None:
        for line in _texts(reply["lines"]):
            _echo(line, err=False)
        return
    for record in _records(reply["stacks"]):
        if record["rank"] in chosen:
            waits = f", waits in {record['waits_in']}" if record["waits_in"] else ""
            _echo(
                f"rank {record['rank']} on {record['host']}, pid {record['pid']}, {record['state']}{waits}",
                err=False,
            )
            _echo(str(record["text"]), err=False)


def send_signal(word: str | None, name: str, rank: int | None) -> None:
    """A signal to one rank, or to all of them."""
    number = _signal_number(name)
    with JobConnection(find_job(word)) as job:
        job.ask(do="signal", signal=number, rank=rank)


def kill(word: str | None, *, now: bool) -> None:
    """End a job as SIGTERM to its launcher does, or at once, and wait for its end."""
    with JobConnection(find_job(word)) as job:
        job.send(do="attach")
        for _ in range(2 if now else 1):
            job.send(do="interrupt", signal=int(signal.SIGTERM))
        for reply in job.listen():
            if "exit_code" in reply:
                return


def _signal_number(name: str) -> int:
    """Of `USR1`, `SIGUSR1` or `10`. Raises UsageError."""
    word = name.upper()
    for known in signal.Signals:
        if word in (known.name, known.name.removeprefix("SIG"), str(int(known))):
            return int(known)
    raise UsageError(f"there is no signal {name}", "see kill -l")


def _state(entry: JobEntry) -> Reply:
    with JobConnection(entry) as job:
        return job.ask(do="state")


def _ranks(state: Reply) -> list[Reply]:
    return _records(state["ranks"])


def _records(value: object) -> list[Reply]:
    return [record for record in value if isinstance(record, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [str(line) for line in value] if isinstance(value, list) else []


def _ranks_table(state: Reply, *, is_live: bool) -> str:
    heads = ("RANK", "HOST", "PID", "STATE", "CPU", "MEMORY", "GPU", "GPU MEMORY", "QUIET")
    rows = [_rank_row(rank) for rank in _ranks(state)]
    if is_live:
        rows = rows[: max(1, _screen_height() - 3)]
    return _table(heads, rows)


def _screen_height() -> int:
    return os.get_terminal_size(1).lines if os.isatty(1) else _MAX_RANK


def _rank_row(rank: Reply) -> tuple[str, ...]:
    code, cpu, quiet_s, rss_bytes = (rank[key] for key in ("returncode", "cpu", "quiet_s", "rss_bytes"))
    state = str(rank["state"]) or "-" if code is None else f"ended with {code}"
    return (
        str(rank["rank"]),
        str(rank["host"]),
        str(rank["pid"] or "-"),
        _STATES.get(state, state),
        f"{100 * cpu:.0f} %" if isinstance(cpu, float | int) else "-",
        f"{rss_bytes / (1 << 20):.0f} MiB" if isinstance(rss_bytes, int) and rss_bytes else "-",
        f"{rank['gpu_percent']} %" if rank.get("gpu_percent") is not None else "-",
        f"{rank['gpu_mib']} MiB" if rank.get("gpu_mib") is not None else "-",
        _time(quiet_s) if isinstance(quiet_s, float | int) else "-",
    )


_STATES = {
    "R": "running",
    "S": "waiting",
    "D": "uninterruptible",
    "T": "stopped",
    "t": "traced",
    "Z": "ended",
    "I": "idle",
    "-": "not started",
}


def _time(seconds: float) -> str:
    """`42 s`, `7 min`, `3 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [tuple(heads), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _listed(text: str) -> list[int]:
    """Of `0,4-7`. Raises UsageError."""
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        numbers = [first, last] if dash else [first]
        if not all(number.isdecimal() and int(number) < _MAX_RANK for number in numbers):
            raise UsageError(f"--rank {text!r} names no ranks", "write 3, or 0,4-7")
        ranks += range(int(first), int(numbers[-1]) + 1)
    return ranks


def _echo(line: str, *, err: bool) -> None:
    stream = sys.stderr if err else sys.stdout
    stream.flush()
    stream.buffer.write(line.encode("utf-8", "surrogateescape") + b"\n")
    stream.buffer.flush()
