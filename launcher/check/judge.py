"""From the hosts' answers to findings: all rules in one order, equal findings told once. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dslaunch.launcher.check.hardware import judge_devices, judge_limits, judge_room
from dslaunch.launcher.check.host_answer import Asked, Finding, HostAnswer, Severity, Told
from dslaunch.launcher.check.versions import judge_program, judge_software
from dslaunch.launcher.check.ways import judge_clocks, judge_interfaces, judge_names, judge_ways


def judge(asked: Asked, answers: Sequence[HostAnswer]) -> tuple[Finding, ...]:
    """Errors first, then warnings, then notes; each with all hosts it is true of, in their order."""
    grouped: dict[tuple[Severity, str, str], list[str]] = {}
    for found in _all(asked, answers):
        grouped.setdefault((found.severity, found.what, found.remedy), []).extend(found.hosts)
    order = list(Severity)
    findings = [
        Finding(severity, tuple(hosts), what, remedy) for (severity, what, remedy), hosts in grouped.items()
    ]
    return tuple(sorted(findings, key=lambda found: order.index(found.severity)))


def _all(asked: Asked, answers: Sequence[HostAnswer]) -> Iterator[Finding]:
    told = []
    for one in answers:
        if one.ready is None or one.answer is None:
            yield Finding(Severity.ERROR, (one.host,), one.what, one.hint or "look at the host")
            continue
        told.append(Told(one.host, one.slots, one.ready, one.clock, one.answer))
        for part, why in one.answer.unknown.items():
            yield Finding(
                Severity.WARNING,
                (one.host,),
                f"its {part} cannot be looked at: {why}",
                "look at its disks and its load",
            )
    yield from judge_program(asked, told)
    yield from judge_software(told)
    yield from judge_devices(asked, told)
    yield from judge_ways(asked, told)
    yield from judge_names(asked, told)
    yield from judge_interfaces(told)
    yield from judge_clocks(told)
    yield from judge_room(told)
    yield from judge_limits(told, sum(len(one.slots) for one in answers))
