"""One launch from request to exit code: look up, plan, show or carry out."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from dslaunch.launcher import dry_run
from dslaunch.launcher.console import Console
from dslaunch.launcher.display import Display
from dslaunch.launcher.master import assumed_master
from dslaunch.launcher.plan import LaunchPlan, Resolved, device_name, make_plan
from dslaunch.launcher.request import DryRun, LaunchRequest
from dslaunch.launcher.resolve import Machine, resolve
from dslaunch.launcher.run import Run
from dslaunch.launcher.verdict import Verdict
from dslaunch.runner_backends.command import Backend


def launch(request: LaunchRequest, started_at: float) -> int:
    """The exit code of `dslaunch`. Raises UsageError or TopologyError before anything starts."""
    resolved = resolve(request, Machine.here())
    job_id = "dry-run" if request.dry_run else os.urandom(8).hex()
    plan = make_plan(resolved, assumed_master(resolved), job_id)
    match request.dry_run:
        case DryRun.JSON:
            print(dry_run.plan_as_json(resolved, plan))
            return 0
        case DryRun.TABLE:
            dry_run.print_table(resolved, plan)
            return 0
        case None:
            return _carry_out(resolved, plan, started_at)


def _carry_out(resolved: Resolved, plan: LaunchPlan, started_at: float) -> int:
    console = Console()
    display = Display(
        console,
        plan,
        lambda slot: device_name(resolved, slot),
        quiet=resolved.request.quiet,
        started_at=started_at,
    )

    async def carry_out() -> Verdict:
        return await Run(resolved, plan, _backend(resolved), display).run()

    verdict = asyncio.run(carry_out())
    console.close(timeout_s=None if verdict.cause is None else 5.0)
    return verdict.exit_code


def _backend(resolved: Resolved) -> Backend:
    if resolved.backend == "local":
        from dslaunch.runner_backends.local import LocalBackend

        return LocalBackend()
    from dslaunch.runner_backends.ssh import SshBackend

    config = resolved.request.ssh_config
    return SshBackend(ssh_config=None if config is None else Path(config))
