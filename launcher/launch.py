"""One launch from request to exit code: look up, plan, show or carry out."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace

from dslaunch.launcher import dry_run
from dslaunch.launcher.carry_out import Outputs, carry_out
from dslaunch.launcher.console_filter import shown_ranks
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
    with pid_file(wanted=request.save_pid):
        return _carry_out(resolved, started_at)


def _carry_out(resolved: Resolved, started_at: float) -> int:
    outputs = Outputs.of(resolved.request, started_at)
    try:
        verdict = asyncio.run(_look_over_and_carry_out(resolved, outputs))
    except LaunchError as error:
        outputs.console.say(f"error: {error.what}")
        outputs.console.say(f"hint: {error.hint}")
        outputs.close(_BAD_END_FLUSH_S)
        return error.exit_code
    except KeyboardInterrupt:  # while the other nodes were waited for
        outputs.close(_BAD_END_FLUSH_S)
        return 128 + signal.SIGINT
    outputs.close(None if verdict.cause is None else _BAD_END_FLUSH_S)
    return verdict.exit_code


async def _look_over_and_carry_out(resolved: Resolved, outputs: Outputs) -> Verdict:
    """Raises LaunchError where the hosts are not well, or do not meet."""
    if resolved.request.preflight is not Preflight.OFF or resolved.request.drop_bad:
        from dslaunch.launcher.check.preflight import preflight

        resolved = await preflight(resolved, outputs.console.say, outputs.folder)
        outputs = replace(outputs, started_at=time.monotonic())
    return await carry_out(resolved, os.urandom(8).hex(), outputs)
