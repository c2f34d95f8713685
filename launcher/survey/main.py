"""The surveyor: asks all parts at once, tells what they found in one line, and keeps its doors open."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from dslaunch.launcher.survey.devices import devices
from dslaunch.launcher.survey.machine import machine
from dslaunch.launcher.survey.network import Doors, network
from dslaunch.launcher.survey.program import program
from dslaunch.launcher.survey.records import MARK, PARTS, Answer, Request
from dslaunch.launcher.survey.software import software


def survey(request: Request) -> Answer:
    """What is known when all parts are done, or the time is over: a file system may not answer at all."""
    found: dict[str, object] = {}
    unknown = dict.fromkeys(PARTS, f"no answer in {request.limit_s:g} s")
    parts: dict[str, Callable[[], object]] = {
        "software": software,
        "program": lambda: program(request.folder, request.script, is_module=request.is_module),
        "devices": lambda: devices(request.accelerator, is_thorough=request.is_thorough),
        "machine": lambda: machine(request.folder),
        "network": lambda: network(request),
    }

    def run(name: str) -> None:
        try:
            found[name] = parts[name]()
            del unknown[name]
        except Exception as error:
            unknown[name] = f"{type(error).__name__}: {error}"

    until = time.monotonic() + request.limit_s
    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in PARTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return Answer(**dict(found), unknown=dict(unknown))  # type: ignore[arg-type]


def main() -> int:
    """argv: the request as JSON."""
    request = Request.from_json(sys.argv[1])
    doors = Doors(request)
    answer = survey(request)
    answer = answer._replace(network=answer.network._replace(closed=tuple(doors.closed)))
    sys.stdout.write(f"\n{MARK}{answer.to_json()}\n")
    sys.stdout.flush()
    doors.wait()
    os._exit(0)  # a part that hangs must not hold it
