"""One job, one fault, and what came of it, on hosts where nothing of ours is installed."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dslaunch.launcher.ctl.chaos import rank, watch
from dslaunch.launcher.ctl.chaos.faults import Fault
from dslaunch.launcher.ctl.chaos.job import Job, payload_request
from dslaunch.launcher.ctl.chaos.watching import Watching
from dslaunch.launcher.errors import LaunchError
from dslaunch.launcher.request import LaunchRequest

GRACE_S = 1.0
_WATCH_S = 20.0
"""How long a job is watched that does not end: twice the limit."""
_POLL_S = 0.01
_TELLING = ("Exited", "AgentClosed", "Interrupted")
"""The events by which a launcher notices a fault."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A fault to be tried: on which rank of how many, and the node that this rank is on."""

    fault: Fault
    victim: int
    victim_node: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a fault, in seconds since it; None where it had not come about after _WATCH_S.

    Attributes:
        noticed_s: until the launcher knew of it; None where it was killed itself.
        exit_s: until the command ended, with `exit_code`, as a shell gives it.
        gone_s: until no process of the job was left on any host.
        num_left: processes that were left.
        cause: kind and record of the cause in verdict.json; empty where nobody could write one.
        said: what the command said.
    """

    noticed_s: float | None
    exit_s: float | None
    exit_code: int | None
    gone_s: float | None
    num_left: int
    cause: dict[str, object]
    said: str


def run_trial(request: LaunchRequest, trial: Trial, watching: Watching) -> Outcome:
    """Raises LaunchError where the job does not come up, or its processes cannot be seen."""
    token = f"{os.getpid()}.{trial.fault.name}.{time.monotonic_ns()}"
    manners = "heeds" if trial.fault is Fault.EXIT_HEEDED else "mixed"
    code = inspect.getsource(rank)
    launch = payload_request(
        replace(request, grace_s=GRACE_S),
        code,
        *(manners, trial.fault.act, str(trial.victim)),
        mark=f"{watch.MARK}={token}",
    )
    lines = _Lines()
    job = Job(launch, lines.add)
    try:
        timeout_s = request.start_timeout_s + _WATCH_S
        _wait(job, lambda: lines.num_up >= trial.num_ranks, timeout_s, "not all ranks came up")
        # a rank and its child each: whoever does not see them cannot say that they are gone
        seen = 2 * trial.num_ranks
        _wait(job, lambda: watching.count(token).num_alive >= seen, _WATCH_S, "the watchers do not see them")
        fault_s = _inflict(job, trial, lines)
        return _watch(job, token, watching, fault_s)
    finally:
        job.close()
        _wait_gone(token, watching)


class _Lines:
    """What the ranks have said so far."""

    def __init__(self) -> None:
        self.num_up = 0
        self.fault = threading.Event()
        self.fault_s = 0.0

    def add(self, line: str) -> None:
        if line.startswith(rank.UP_LINE.decode()):
            self.num_up += 1
        elif line.startswith(rank.FAULT_LINE.decode()):
            self.fault_s = time.monotonic() + rank.DELAY_S
            self.fault.set()


def _wait(job: Job, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if job.process.poll() is not None or time.monotonic() > deadline:
            raise LaunchError(f"{what}: {job.complaint}", "try it with dslaunch")
        time.sleep(_POLL_S)


def _inflict(job: Job, trial: Trial, lines: _Lines) -> float:
    """Returns when, on the monotonic clock."""
    if trial.fault.act != "none":
        job.process.send_signal(signal.SIGUSR1)
        if not lines.fault.wait(_WATCH_S):
            raise LaunchError(f"SIGUSR1 did not reach rank {trial.victim}", "try it with dslaunch")
        return lines.fault_s
    if trial.fault is Fault.KILL_TOOL:
        pids = job.children
        if not pids:
            raise LaunchError("the command has started no program", "try another fault")
        os.kill(max(pids), signal.SIGKILL)
    elif trial.fault is Fault.INT_CLI:
        os.killpg(job.process.pid, trial.fault.signal)
    else:
        job.process.send_signal(trial.fault.signal)
    return time.monotonic()


def _watch(job: Job, token: str, watching: Watching, fault_s: float) -> Outcome:
    fault_ns = time.time_ns() - int((time.monotonic() - fault_s) * 1e9)
    exit_s = None
    while True:
        if exit_s is None and job.process.poll() is not None:
            exit_s = max(0.0, time.monotonic() - fault_s)
        alive = watching.count(token)
        is_over = exit_s is not None and alive.num_alive == 0
        if is_over or time.monotonic() > fault_s + _WATCH_S:
            break
        time.sleep(_POLL_S)
    code = job.process.poll()
    return Outcome(
        noticed_s=_noticed_s(job.run_dir, fault_ns),
        exit_s=exit_s,
        exit_code=code if code is None or code >= 0 else 128 - code,
        gone_s=None if alive.num_alive else max(0.0, alive.since_s - fault_s),
        num_left=alive.num_alive,
        cause=_cause(job.run_dir),
        said=job.said,
    )


def _noticed_s(run_dir: Path, fault_ns: int) -> float | None:
    """When the first event came that tells of a fault."""
    with contextlib.suppress(OSError, ValueError):
        for line in (run_dir / "events.jsonl").read_text().splitlines():
            record = json.loads(line)
            is_notice = record["event"] == "Interrupted" and record["signal"] == signal.SIGUSR1
            if record["event"] in _TELLING and not is_notice:
                noticed_ns: int = record["launcher_time_ns"]
                return max(0.0, (noticed_ns - fault_ns) / 1e9)
    return None


def _cause(run_dir: Path) -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        cause = json.loads((run_dir / "verdict.json").read_text())["cause"]
        return cause if isinstance(cause, dict) else {}
    return {}


def _wait_gone(token: str, watching: Watching) -> None:
    """So that the next trial begins on quiet hosts; what still lives after that was told already."""
    deadline = time.monotonic() + _WATCH_S
    with contextlib.suppress(LaunchError):
        while watching.count(token).num_alive and time.monotonic() < deadline:
            time.sleep(_POLL_S)
