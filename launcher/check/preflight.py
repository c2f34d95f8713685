"""`--preflight`: look the hosts over before a launch, and go on with those that are well, or not at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dslaunch.hostfile import Topology, fold_names
from dslaunch.launcher.check.ask import ask_hosts
from dslaunch.launcher.check.command import asked_of
from dslaunch.launcher.check.host_answer import Finding, Severity
from dslaunch.launcher.check.judge import judge
from dslaunch.launcher.check.show import as_json, line, summary
from dslaunch.launcher.errors import PreflightError
from dslaunch.launcher.plan import Resolved
from dslaunch.launcher.request import Preflight
from dslaunch.launcher.run_folder import RunFolder


async def preflight(resolved: Resolved, say: Callable[[str], None], folder: RunFolder | None) -> Resolved:
    """The launch without hosts that have errors, where those may be dropped.

    Findings are said, and kept in the run's folder. Raises PreflightError where the launch is to end.
    """
    request, started_at = resolved.request, time.monotonic()
    is_thorough = request.preflight is Preflight.FULL
    answers = await ask_hosts(resolved, is_thorough=is_thorough, start_s=request.start_timeout_s)
    findings = judge(asked_of(resolved), answers)
    took_s = time.monotonic() - started_at
    if folder is not None:
        folder.write_preflight(as_json(answers, findings, (), took_s))
    for found in findings:
        if found.severity is Severity.ERROR or not request.quiet:
            say(line(found))
    if not request.quiet:
        say(summary(answers, findings, took_s))
    return go_on(resolved, findings)


def go_on(resolved: Resolved, findings: Sequence[Finding]) -> Resolved:
    """What is left to launch after these findings. Pure. Raises PreflightError where it is not enough.

    Hosts that are dropped count as spares where there are some: as many as were asked for train.
    """
    request = resolved.request
    bad = {host for found in findings if found.severity is Severity.ERROR for host in found.hosts}
    if not bad:
        return resolved
    names = fold_names(host.name for host in resolved.topology if host.name in bad)
    if not request.drop_bad:
        raise PreflightError(
            f"not launched: {names} cannot be used",
            "do as it says above, go on without them (--drop_bad), or leave out --preflight",
        )
    left = tuple(host for host in resolved.topology if host.name not in bad)
    spares = max(0, request.spares - len(bad))
    if len(left) - spares < max(1, request.min_nodes or 1):
        raise PreflightError(f"not launched: without {names} too few hosts are left", "do as it says above")
    return replace(resolved, topology=Topology(left), request=replace(request, spares=spares))
