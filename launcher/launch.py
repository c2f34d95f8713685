"""One launch from request to exit code: look up, plan, show or carry out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dslaunch.launcher import dry_run
from dslaunch.launcher.carry_out import Outputs, carry_out
from dslaunch.launcher.console_filter import shown_ranks
from dslaunch.launcher.control.registry import JobEntry, job_entry
from dslaunch.launcher.errors import LaunchError
from dslaunch.launcher.fleets import check_backend
from dslaunch.launcher.machine import Machine
from dslaunch.launcher.master import assumed_master
from dslaunch.launcher.pid_file import pid_file
from dslaunch.launcher.plan import Resolved, make_plan
from dslaunch.launcher.request import DryRun, LaunchRequest, Preflight
from dslaunch.launcher.resolve import resolve
from dslaunch.launcher.verdict import Verdict

_BAD_END_FLUSH_S = 5.0
"""After a bad end the user does not wait for a terminal that takes no more."""


def launch(request: LaunchRequest, started_at: float) -> int:
    """The exit code of `dslaunch`. Raises UsageError or TopologyError before anything starts."""
    if request.dry_run is DryRun.YAML:
        print(dry_run.request_as_yaml(request), end="")
        return 0
    resolved = resolve(request, Machine.here())
    plan = make_plan(resolved, assumed_master(resolved), "dry-run")
    shown_ranks(request.console, plan)
    check_backend(resolved)
    match request.dry_run:
        case DryRun.JSON:
            print(dry_run.plan_as_json(resolved, plan))
            return 0
        case DryRun.TABLE:
            dry_run.print_table(resolved, plan)
            return 0
    job_id = os.urandom(4).hex()
    name = request.name or Path(request.script).stem
    if not request.detach:
        return _carry_out(resolved, job_entry(resolved.request, name, job_id), started_at, lambda: None)
    from dslaunch.launcher.detach import detach, with_run_dir

    resolved = replace(resolved, request=with_run_dir(request, name, job_id))
    went = detach(job_entry(resolved.request, name, job_id))
    if isinstance(went, int):
        return went
    return _carry_out(resolved, job_entry(resolved.request, name, job_id), started_at, went)


def _carry_out(resolved: Resolved, entry: JobEntry, started_at: float, on_ready: Callable[[], None]) -> int:
    """`on_ready` is called when the job can be asked about."""
    with pid_file(wanted=resolved.request.save_pid):
        outputs = Outputs.of(resolved.request, entry, started_at, sys.argv[1:])
        try:
            exit_code = asyncio.run(_controlled(resolved, outputs, on_ready))
        except KeyboardInterrupt:  # while the other nodes were waited for
            exit_code = 128 + signal.SIGINT
        outputs.close(None if exit_code == 0 else _BAD_END_FLUSH_S)
        return exit_code


async def _controlled(resolved: Resolved, outputs: Outputs, on_ready: Callable[[], None]) -> int:
    """The exit code of a job that others may ask about and touch meanwhile."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(outputs.desk.serving(on_ready))
        except OSError as error:
            outputs.console.say(f"dslaunchctl will not find this job: {error}")
        try:
            exit_code = (await _look_over_and_carry_out(resolved, outputs)).exit_code
        except LaunchError as error:
            outputs.console.say(f"error: {error.what}")
            outputs.console.say(f"hint: {error.hint}")
            if outputs.folder is not None:
                outputs.folder.write_refusal(error)
            exit_code = error.exit_code
        await outputs.desk.ends(exit_code)
        return exit_code


async def _look_over_and_carry_out(resolved: Resolved, outputs: Outputs) -> Verdict:
    """Raises LaunchError where the hosts are not well, or do not meet."""
    if resolved.request.preflight is not Preflight.OFF or resolved.request.drop_bad:
        from dslaunch.launcher.check.preflight import preflight

        resolved = await preflight(resolved, outputs.console.say, outputs.folder)
        outputs = replace(outputs, started_at=time.monotonic())
    return await carry_out(resolved, os.urandom(8).hex(), outputs)
