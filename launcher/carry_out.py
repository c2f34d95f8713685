"""Carry a plan out: make what shows and keeps its output, run it, and again where that is asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.hostfile import Topology
from dslaunch.launcher.again import command_again
from dslaunch.launcher.console import Console
from dslaunch.launcher.console_filter import shown_ranks
from dslaunch.launcher.control.desk import Desk
from dslaunch.launcher.control.registry import JobEntry
from dslaunch.launcher.counted import counted
from dslaunch.launcher.display import Display, Words
from dslaunch.launcher.fleets import make_fleet
from dslaunch.launcher.master import assumed_master
from dslaunch.launcher.plan import LaunchPlan, Resolved, device_name, make_plan
from dslaunch.launcher.rank_lines import RankLines
from dslaunch.launcher.rank_logs import RankLogs
from dslaunch.launcher.request import LaunchRequest
from dslaunch.launcher.restarts import Attempt, GiveUp, Limits, first_attempt, next_attempt
from dslaunch.launcher.run import Run
from dslaunch.launcher.run_folder import RunFolder
from dslaunch.launcher.verdict import Verdict

if TYPE_CHECKING:  # what links nodes by hand is slow to load, and rarely needed
    from dslaunch.launcher.peers import Peers


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a job's output goes, over all its attempts."""

    console: Console
    logs: Sequence[RankLogs]
    folder: RunFolder | None
    desk: Desk
    started_at: float
    argv: Sequence[str]

    @staticmethod
    def of(request: LaunchRequest, entry: JobEntry, started_at: float, argv: Sequence[str]) -> Outputs:
        """`argv` are the words that `dslaunch` was given.

        Raises UsageError where a folder cannot be written to.
        """
        folder = None if request.run_dir is None else RunFolder(Path(request.run_dir))
        desk = Desk(entry)
        console = Console()
        console.mirror = desk.on_console
        return Outputs(console, _rank_logs(request, folder), folder, desk, started_at, argv)

    def close(self, timeout_s: float | None) -> None:
        """Write what is left, for `timeout_s` at most."""
        for log in self.logs:
            log.close()
        if self.folder is not None:
            self.folder.close()
        self.console.close(timeout_s)


async def carry_out(resolved: Resolved, job_id: str, outputs: Outputs) -> Verdict:
    """The end of the last attempt. Raises LaunchError where nodes that are started by hand do not meet."""
    if resolved.is_linked:
        from dslaunch.launcher.join import joined

        plan = make_plan(resolved, assumed_master(resolved), job_id)
        async with joined(resolved, plan, outputs.console.say) as (placed, shared_id, peers):
            verdict, _ = await _run(placed, shared_id, outputs, peers)
            return verdict
    request = resolved.request
    limits = Limits(request.max_restarts, request.min_nodes)
    too_many = max(0, len(resolved.topology) - (request.max_nodes or len(resolved.topology)))
    attempt = first_attempt(resolved.topology.hosts, max(request.spares, too_many))
    while True:
        verdict, progress = await _run(_placed(resolved, attempt), job_id, outputs, None)
        if verdict.cause is None:
            return verdict
        held = {*verdict.silent_nodes, *verdict.stuck_nodes}
        following = next_attempt(limits, attempt, verdict.cause, progress, held)
        if isinstance(following, GiveUp):
            if following.reason:
                outputs.console.say(f"not restarted: {following.reason}")
            if newest := progress or attempt.progress:
                again = command_again(outputs.argv, resumes=True)
                outputs.console.say(f"to go on from checkpoint {newest}: {again}")
            return verdict
        attempt, job_id = following, os.urandom(8).hex()
        outputs.console.say(_restarting(attempt, limits))


def _placed(resolved: Resolved, attempt: Attempt) -> Resolved:
    return replace(resolved, topology=Topology(attempt.hosts), attempt=attempt.number)


def _restarting(attempt: Attempt, limits: Limits) -> str:
    hosts = counted(len(attempt.hosts), "host")
    since = f", from checkpoint {attempt.progress}" if attempt.progress else ""
    return f"restart {attempt.number} of {limits.max_restarts} on {hosts}{since}"


async def _run(resolved: Resolved, job_id: str, outputs: Outputs, peers: Peers | None) -> tuple[Verdict, str]:
    """One attempt: its end, and the newest checkpoint it told of."""
    plan = make_plan(resolved, assumed_master(resolved), job_id)
    display = _display(resolved, plan, outputs)
    run = Run(resolved, plan, make_fleet(resolved, plan), display, peers, outputs.desk)
    verdict = await run.run()
    return verdict, run.progress


def _display(resolved: Resolved, plan: LaunchPlan, outputs: Outputs) -> Display:
    request = resolved.request
    shown = shown_ranks(request.console, plan)
    lines = RankLines(outputs.console, plan, shown, fold=request.fold)
    return Display(
        outputs.console,
        plan,
        lambda slot: device_name(resolved, slot),
        rank_lines=None if request.enable_each_rank_log else lines,
        sinks=[*(log.write for log in outputs.logs), outputs.desk.on_lines],
        words=Words(
            info=not request.quiet and request.log_level in ("debug", "info"),
            debug=request.log_level == "debug" and not request.quiet,
        ),
        folder=outputs.folder,
        started_at=outputs.started_at if resolved.attempt == 0 else time.monotonic(),
        log=lambda rank: str(outputs.logs[0].path(rank)) if outputs.logs else "",
        argv=outputs.argv,
    )


def _rank_logs(request: LaunchRequest, folder: RunFolder | None) -> list[RankLogs]:
    """The places that ranks' lines are written to."""
    logs = []
    if folder is not None:
        logs.append(RankLogs(folder.logs, "rank{}.log".format))
    if request.log_dir is not None:
        logs.append(RankLogs(Path(request.log_dir), "rank{}.log".format))
    if request.enable_each_rank_log is not None:
        stamp = time.strftime("%Y%m%d%H%M%S")
        logs.append(RankLogs(Path(request.enable_each_rank_log), f"{stamp}_rank{{}}.log".format))
    return logs
