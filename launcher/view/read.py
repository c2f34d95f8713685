"""Read a run's folder, and write its page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.view.history import Attempt, history
from dslaunch.launcher.view.page import Run, page
from dslaunch.launcher.view.usage import usage

_MAX_ATTEMPTS = 6
_MAX_RANKS = 1500
"""The last attempts are drawn, while they have no more ranks than these; the table has all attempts."""
_TAIL_BYTES = 8192
_TAIL_LINES = 20
_MAX_TAILS = 8
_MAX_CENSUS_CHARS = 64 * 1024


def write_page(folder: Path, target: Path) -> None:
    """The page of the run in `folder`. Raises UsageError where there is none, or it cannot be written."""
    text = page(read_run(folder))
    try:
        target.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}", "name another file with -o") from error


def read_run(folder: Path) -> Run:
    """Raises UsageError where there is no run in the folder."""
    lines = _lines(folder / "events.jsonl")
    try:
        told = history(lines)
    except ValueError as error:
        raise UsageError(
            f"no run in {folder}", "name the folder that dslaunch --run_dir was given"
        ) from error
    drawn = _drawn(told.attempts)
    used = _lines(folder / "usage.jsonl")
    return Run(
        title=folder.resolve().name,
        program=_program(folder),
        history=told,
        usages=[
            usage(
                used, told.opened_ns, one.opened_s, one.ended_s if one.ended_s is not None else told.length_s
            )
            for one in drawn
        ],
        findings=_findings(folder),
        texts=dict(_texts(folder, told.attempts[-1])),
    )


def _drawn(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """The last one in any case."""
    number, num_ranks = 1, len(attempts[-1].ranks)
    for attempt in reversed(attempts[:-1]):
        num_ranks += len(attempt.ranks)
        if number == _MAX_ATTEMPTS or num_ranks > _MAX_RANKS:
            break
        number += 1
    return attempts[-number:]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _record(path: Path) -> Mapping[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _program(folder: Path) -> str:
    """What rank 0 executes, as one would type it."""
    nodes = _record(folder / "plan.json").get("nodes") or [{"ranks": [{"argv": []}]}]
    return shlex.join(nodes[0]["ranks"][0]["argv"])


def _findings(folder: Path) -> list[str]:
    return [
        f"{one['severity']}: {', '.join(one['hosts'])}: {one['what']} -> {one['remedy']}"
        for one in _record(folder / "preflight.json").get("findings", ())
    ]


def _texts(folder: Path, last: Attempt) -> Iterator[tuple[str, str]]:
    for path in sorted((folder / "census").glob("*.txt")):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield f"Where the ranks were ({path.stem})", text[:_MAX_CENSUS_CHARS]
    failed = sorted((rank for rank in last.ranks if rank.returncode), key=lambda rank: rank.ended_s or 0.0)
    for rank in failed[:_MAX_TAILS]:
        tail = _tail(folder / "logs" / f"rank{rank.rank}.log")
        if tail:
            yield f"Last lines of rank {rank.rank}", tail


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
