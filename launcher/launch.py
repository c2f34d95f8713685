"""One launch from request to exit code: look up, plan, show or carry out."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from dslaunch.launcher import dry_run
from dslaunch.launcher.console import Console
from dslaunch.launcher.console_filter import shown_ranks
from dslaunch.launcher.display import Display, Words
from dslaunch.launcher.fleets import make_fleet
from dslaunch.launcher.machine import Machine
from dslaunch.launcher.master import assumed_master
from dslaunch.launcher.pid_file import pid_file
from dslaunch.launcher.plan import LaunchPlan, Resolved, device_name, make_plan
from dslaunch.launcher.rank_lines import RankLines
from dslaunch.launcher.rank_logs import RankLogs
from dslaunch.launcher.request import DryRun, LaunchRequest
from dslaunch.launcher.resolve import resolve
from dslaunch.launcher.run import Run
from dslaunch.launcher.run_folder import RunFolder
from dslaunch.launcher.verdict import Verdict

_INTERRUPTED_FLUSH_S = 5.0
"""After a bad end the user does not wait for a terminal that takes no more."""


def launch(request: LaunchRequest, started_at: float) -> int:
    """The exit code of `dslaunch`. Raises UsageError or TopologyError before anything starts."""
    if request.dry_run is DryRun.YAML:
        print(dry_run.request_as_yaml(request), end="")
        return 0
    resolved = resolve(request, Machine.here())
    job_id = "dry-run" if request.dry_run else os.urandom(8).hex()
    plan = make_plan(resolved, assumed_master(resolved), job_id)
    shown = shown_ranks(request.console, plan)
    match request.dry_run:
        case DryRun.JSON:
            print(dry_run.plan_as_json(resolved, plan))
            return 0
        case DryRun.TABLE:
            dry_run.print_table(resolved, plan)
            return 0
    with pid_file(wanted=request.save_pid):
        return _carry_out(resolved, plan, shown, started_at)


def _carry_out(resolved: Resolved, plan: LaunchPlan, shown: frozenset[int], started_at: float) -> int:
    request = resolved.request
    folder = None if request.run_dir is None else RunFolder(Path(request.run_dir))
    logs = _rank_logs(request, folder)
    console = Console()
    rank_lines = None if request.enable_each_rank_log else RankLines(console, plan, shown, fold=request.fold)
    display = Display(
        console,
        plan,
        lambda slot: device_name(resolved, slot),
        rank_lines=rank_lines,
        sinks=[log.write for log in logs],
        words=Words(
            info=not request.quiet and request.log_level in ("debug", "info"),
            debug=request.log_level == "debug" and not request.quiet,
        ),
        folder=folder,
        started_at=started_at,
    )

    async def carry_out() -> Verdict:
        return await Run(resolved, plan, make_fleet(resolved, plan), display).run()

    verdict = asyncio.run(carry_out())
    for log in logs:
        log.close()
    console.close(timeout_s=None if verdict.cause is None else _INTERRUPTED_FLUSH_S)
    return verdict.exit_code


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
