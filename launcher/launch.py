"""One launch from request to exit code: look up, plan, show or carry out."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.launcher import dry_run
from dslaunch.launcher.console import Console
from dslaunch.launcher.console_filter import shown_ranks
from dslaunch.launcher.display import Display, Words
from dslaunch.launcher.errors import EXIT_LAUNCH_FAILED, LaunchError
from dslaunch.launcher.fleets import check_backend, make_fleet
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

if TYPE_CHECKING:
    from dslaunch.launcher.peers import Peers

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
    shown_ranks(request.console, plan)
    check_backend(resolved)
    match request.dry_run:
        case DryRun.JSON:
            print(dry_run.plan_as_json(resolved, plan))
            return 0
        case DryRun.TABLE:
            dry_run.print_table(resolved, plan)
            return 0
    with pid_file(wanted=request.save_pid):
        return _carry_out(resolved, plan, started_at)


def _carry_out(resolved: Resolved, plan: LaunchPlan, started_at: float) -> int:
    request = resolved.request
    folder = None if request.run_dir is None else RunFolder(Path(request.run_dir))
    logs = _rank_logs(request, folder)
    console = Console()

    async def run(placed: Resolved, job_id: str, peers: Peers | None) -> Verdict:
        final = make_plan(placed, assumed_master(placed), job_id)
        display = _display(placed, final, console, logs, folder, started_at)
        return await Run(placed, final, make_fleet(placed, final), display, peers).run()

    async def carry_out() -> Verdict:
        if not resolved.is_linked:
            return await run(resolved, plan.job_id, None)
        from dslaunch.launcher.join import joined

        async with joined(resolved, plan, console.say) as (placed, job_id, peers):
            return await run(placed, job_id, peers)

    try:
        verdict = asyncio.run(carry_out())
    except LaunchError as error:
        console.say(f"error: {error.what}")
        console.say(f"hint: {error.hint}")
        console.close(_INTERRUPTED_FLUSH_S)
        return EXIT_LAUNCH_FAILED
    except KeyboardInterrupt:  # while the other nodes were waited for
        console.close(_INTERRUPTED_FLUSH_S)
        return 128 + signal.SIGINT
    for log in logs:
        log.close()
    console.close(timeout_s=None if verdict.cause is None else _INTERRUPTED_FLUSH_S)
    return verdict.exit_code


def _display(
    resolved: Resolved,
    plan: LaunchPlan,
    console: Console,
    logs: Sequence[RankLogs],
    folder: RunFolder | None,
    started_at: float,
) -> Display:
    request = resolved.request
    shown = shown_ranks(request.console, plan)
    return Display(
        console,
        plan,
        lambda slot: device_name(resolved, slot),
        rank_lines=None
        if request.enable_each_rank_log
        else RankLines(console, plan, shown, fold=request.fold),
        sinks=[log.write for log in logs],
        words=Words(
            info=not request.quiet and request.log_level in ("debug", "info"),
            debug=request.log_level == "debug" and not request.quiet,
        ),
        folder=folder,
        started_at=started_at,
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
