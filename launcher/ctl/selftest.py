"""`dslaunchctl selftest`: faults tried for real on the user's own hosts, and what is left of them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from dslaunch.launcher.counted import counted
from dslaunch.launcher.ctl.chaos.faults import Fault
from dslaunch.launcher.ctl.chaos.judge import Row, as_record, as_text
from dslaunch.launcher.ctl.chaos.trial import Trial, run_trial
from dslaunch.launcher.ctl.chaos.watching import Watching
from dslaunch.launcher.errors import LaunchError, UsageError
from dslaunch.launcher.plan import Resolved
from dslaunch.launcher.request import LaunchRequest

_CPU_RANKS = 4
"""On this machine alone, without devices: one for each of the manners that ranks can have, and the victim."""
_HAVE_NO_TOOL = ("local", "ssh")


def enough_ranks(resolved: Resolved) -> LaunchRequest:
    """The request, with some ranks where nobody has said how many and there is no device to count."""
    request = resolved.request
    is_alone = resolved.backend == "local" and request.num_gpus is None and resolved.device_kind == "cpu"
    return replace(request, num_gpus=_CPU_RANKS) if is_alone else request


def faults_to_try(backend: str, wanted: Sequence[str]) -> list[Fault]:
    """Those whose words begin as one of `wanted`, or all, as far as they can be tried. Raises UsageError."""
    possible = [fault for fault in Fault if not fault.needs_hosts]
    if backend in _HAVE_NO_TOOL:
        possible.remove(Fault.KILL_TOOL)
    chosen = [fault for fault in possible if fault.value.startswith(tuple(wanted or [""]))]
    if not chosen:
        names = ", ".join(fault.value for fault in possible)
        raise UsageError(f"no fault begins with {' or '.join(map(repr, wanted))}", f"there are: {names}")
    return chosen


def selftest(
    resolved: Resolved, faults: Sequence[Fault], progress: Callable[[str], None], *, as_json: bool
) -> tuple[str, int]:
    """What is to be printed, and the exit code: 0 only if all went well. Raises LaunchError."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # end what was started
    hosts = resolved.topology.hosts
    num_ranks = resolved.topology.num_slots
    where = f"{counted(len(hosts), 'host')}, {counted(num_ranks, 'rank')}, launcher {resolved.backend}"
    rows = []
    request = replace(resolved.request, script="")
    with Watching(request, len(hosts)) as watching:
        for number, fault in enumerate(faults, start=1):
            progress(f"{number} of {len(faults)}: {fault.value}")
            trial = Trial(fault, num_ranks - 1, len(hosts) - 1, num_ranks)
            try:
                rows.append(Row(trial, run_trial(request, trial, watching)))
            except LaunchError as error:
                rows.append(Row(trial, None, error.what))
    text = json.dumps(as_record(rows, where), indent=2) if as_json else as_text(rows, where)
    return text, int(any(row.troubles for row in rows))
