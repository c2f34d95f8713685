"""`dslaunchctl check`: ask the hosts, judge, show, and give the exit code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dslaunch.launcher.check.ask import ask_hosts
from dslaunch.launcher.check.host_answer import Asked, Finding, Severity
from dslaunch.launcher.check.judge import judge
from dslaunch.launcher.check.links import Pair, judge_pairs
from dslaunch.launcher.check.measure import measure_pairs
from dslaunch.launcher.check.show import as_json, as_text
from dslaunch.launcher.console import Console
from dslaunch.launcher.fleets import check_backend
from dslaunch.launcher.plan import Resolved
from dslaunch.launcher.rank_env import DEFAULT_MASTER_PORT

_EXIT_FOUND = 1
_LINKS_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Manner:
    """How hosts are to be looked over. `start_s` is how long one may take to be reached."""

    is_thorough: bool
    measures_links: bool
    is_json: bool
    start_s: float


def check_hosts(resolved: Resolved, manner: Manner) -> int:
    """0 where there is nothing to mend, else 1. Raises UsageError where the backend cannot be used."""
    check_backend(resolved)
    started_at = time.monotonic()
    answers = asyncio.run(ask_hosts(resolved, is_thorough=manner.is_thorough, start_s=manner.start_s))
    findings = judge(asked_of(resolved), answers)
    took_s = time.monotonic() - started_at
    console = Console()
    pairs: Sequence[Pair] = ()
    if manner.measures_links and _is_any(findings, Severity.ERROR):
        console.say("links are not measured before the errors are mended")
    elif manner.measures_links:
        pairs = asyncio.run(measure_pairs(resolved, console, _LINKS_LIMIT_S))
        findings = (*findings, *judge_pairs(pairs))
        if not pairs and sum(len(one.slots) for one in answers) > 1:
            hosts = tuple(one.host for one in answers)
            hint = "what the launch has said tells why"
            findings += (Finding(Severity.ERROR, hosts, "links between them cannot be measured", hint),)
    show = as_json if manner.is_json else as_text
    console.write(1, show(answers, findings, pairs, took_s).encode("utf-8", "surrogateescape") + b"\n")
    console.close(None)
    return _EXIT_FOUND if _is_any(findings, Severity.ERROR, Severity.WARNING) else 0


def _is_any(findings: Sequence[Finding], *severities: Severity) -> bool:
    return any(found.severity in severities for found in findings)


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
