"""The hosts as a table and the findings as lines, for people; and both as JSON, for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from dslaunch.hostfile import fold_names
from dslaunch.launcher.check.host_answer import Finding, HostAnswer, Severity
from dslaunch.launcher.check.links import Pair, pairs_in_words
from dslaunch.launcher.survey.records import Answer

_DIGEST_CHARS = 12


def as_text(
    answers: Sequence[HostAnswer], findings: Sequence[Finding], pairs: Sequence[Pair], took_s: float
) -> str:
    """One row for all hosts that are alike, one line a problem with its remedy, and how many there are."""
    links = [pairs_in_words(pairs)] if pairs else []
    return "\n".join([*_table(answers), *map(line, findings), *links, summary(answers, findings, took_s)])


def line(found: Finding) -> str:
    """`error: worker-3: what is wrong -> what to do about it`"""
    return f"{found.severity.value}: {fold_names(found.hosts)}: {found.what} -> {found.remedy}"


def summary(answers: Sequence[HostAnswer], findings: Sequence[Finding], took_s: float) -> str:
    """How many hosts, how long it took, and how many problems."""
    counts = [
        _count(number, severity.value)
        for severity in Severity
        if (number := sum(found.severity is severity for found in findings))
    ]
    hosts = _count(len(answers), "host")
    return f"{hosts} looked over in {took_s:.1f} s: {', '.join(counts) or 'nothing found'}"


def as_json(
    answers: Sequence[HostAnswer], findings: Sequence[Finding], pairs: Sequence[Pair], took_s: float
) -> str:
    """One object: `took_s`, `findings`, `pairs`, and `hosts` with their answers; null for none."""
    record = {
        "took_s": round(took_s, 3),
        "findings": [
            {"severity": one.severity.value, "hosts": one.hosts, "what": one.what, "remedy": one.remedy}
            for one in findings
        ],
        "pairs": [{"hosts": one.names, "gbps": round(one.gbps, 3), "error": one.error} for one in pairs],
        "hosts": [
            {
                "host": one.host,
                "slots": one.slots,
                "answered_s": round(one.answered_s, 3) if one.ready else None,
                "clock_offset_s": -one.clock.offset_ns / 1e9 if one.ready else None,
                "answer": None if one.answer is None else json.loads(one.answer.to_json()),
            }
            for one in answers
        ],
    }
    return json.dumps(record, indent=2)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _table(answers: Sequence[HostAnswer]) -> Iterator[str]:
    rows: dict[tuple[str, ...], list[str]] = {}
    names = tuple(name for name, _ in _facts(Answer()))
    for one in answers:
        facts = tuple(value for _, value in _facts(one.answer)) if one.answer else ("no answer",)
        rows.setdefault(facts, []).append(one.host)
    cells = [("hosts", *names), *((fold_names(hosts), *facts) for facts, hosts in rows.items())]
    used = [0] + [i for i in range(1, len(names) + 1) if any(len(row) > i and row[i] for row in cells[1:])]
    widths = {i: max(len(row[i]) for row in cells if len(row) > i) for i in used}
    for row in cells:
        yield "  ".join(f"{row[i] or '-':{widths[i]}}" for i in used if len(row) > i).rstrip()


def _facts(answer: Answer) -> list[tuple[str, str]]:
    """What hosts of one cluster have in common, by name; "" for what is not there."""
    software, devices = answer.software, answer.devices
    gpus = sorted({gpu.name for gpu in devices.gpus})
    shm = next((space.total_bytes for space in answer.machine.spaces if space.purpose == "/dev/shm"), 0)
    return [
        ("python", software.python),
        ("torch", software.packages.get("torch", "")),
        ("cuda", software.cuda),
        ("nccl", software.packages.get("nccl", "")),
        ("driver", software.driver),
        (
            "devices",
            f"{devices.num_devices} x {'/'.join(gpus) or devices.kind}" if devices.num_devices else "",
        ),
        ("/dev/shm", f"{shm / 2**30:.1f} GiB" if shm else ""),
        ("script", answer.program.digest[:_DIGEST_CHARS]),
    ]
