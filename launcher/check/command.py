"""`dslaunchctl check`: ask the hosts, judge, show, and give the exit code."""

from __future__ import annotations

import asyncio
import time

from dslaunch.launcher.check.ask import ask_hosts
from dslaunch.launcher.check.host_answer import Asked, Severity
from dslaunch.launcher.check.judge import judge
from dslaunch.launcher.check.show import as_json, as_text
from dslaunch.launcher.console import Console
from dslaunch.launcher.fleets import check_backend
from dslaunch.launcher.plan import Resolved
from dslaunch.launcher.rank_env import DEFAULT_MASTER_PORT

_EXIT_FOUND = 1


def check_hosts(resolved: Resolved, *, is_thorough: bool, start_s: float, is_json: bool) -> int:
    """0 where there is nothing to mend, else 1. Raises UsageError where the backend cannot be used."""
    check_backend(resolved)
    started_at = time.monotonic()
    answers = asyncio.run(ask_hosts(resolved, is_thorough=is_thorough, start_s=start_s))
    findings = judge(asked_of(resolved), answers)
    took_s = time.monotonic() - started_at
    show = as_json if is_json else as_text
    console = Console()
    console.write(1, show(answers, findings, took_s).encode("utf-8", "surrogateescape") + b"\n")
    console.close(None)
    return _EXIT_FOUND if any(found.severity is not Severity.NOTE for found in findings) else 0


def asked_of(resolved: Resolved) -> Asked:
    """What judging needs to know of a launch."""
    request = resolved.request
    return Asked(
        port=request.master_port or DEFAULT_MASTER_PORT,
        has_named_port=request.master_port is not None,
        master_addr=request.master_addr or "",
        folder=resolved.cwd,
        script=request.script,
        accelerator=request.accelerator,
    )
