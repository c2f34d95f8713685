"""The whole page: one HTML text that needs nothing else. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from dslaunch.hostfile import fold_names
from dslaunch.launcher.view.charts import usage_charts
from dslaunch.launcher.view.history import Attempt, History
from dslaunch.launcher.view.lanes import in_words, rank_lanes, start_up
from dslaunch.launcher.view.style import STYLE
from dslaunch.launcher.view.usage import Usage

_STARTING = (
    ("reach", "host reached"),
    ("wait", "waits for other hosts"),
    ("spawn", "ranks started"),
    ("load", "until they write something"),
)
_RUNNING = (
    ("load", "nothing written yet"),
    ("run", "runs"),
    ("idle", "idle: no processor time"),
    ("blocked", "blocked in the kernel"),
    ("stopped", "stopped"),
    ("bad", "ended badly"),
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Run:
    """All that the page shows.

    `usages` has one for each of the last attempts, which are drawn; `texts` are stacks and last lines by
    their headings; `findings` are those of the preflight, as lines.
    """

    title: str
    program: str
    history: History
    usages: Sequence[Usage]
    findings: Sequence[str]
    texts: Mapping[str, str]


def page(run: Run) -> str:
    """The page of a run; it follows the reader's choice of light and dark."""
    last = run.history.attempts[-1]
    body = [
        f"<h1>{escape(run.title)}</h1>",
        _verdict(last),
        _facts(run),
        _section("What it ended with", _pre("\n".join(last.report)) if last.report else ""),
        _section("Attempts", _attempts(run.history) if len(run.history.attempts) > 1 else ""),
        _section("Before the launch", _pre("\n".join(run.findings)) if run.findings else ""),
    ]
    numbered = list(enumerate(run.history.attempts))[-len(run.usages) :]
    for (number, attempt), usage in reversed(list(zip(numbered, run.usages, strict=True))):
        end_s = attempt.ended_s if attempt.ended_s is not None else run.history.length_s
        which = f", attempt {number}" if len(run.history.attempts) > 1 else ""
        starting, lanes = start_up(attempt), rank_lanes(attempt, usage, end_s)
        body += [
            _section(f"Start-up{which}", starting and _legend(_STARTING) + starting),
            _section(f"Ranks{which}", _legend(_RUNNING) + lanes if attempt.ranks else ""),
            _section(f"Memory and devices{which}", usage_charts(attempt, usage, end_s)),
        ]
    body += [_section(heading, _pre(text)) for heading, text in run.texts.items()]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(run.title)}</title><style>{STYLE}</style></head>\n<body>{''.join(body)}</body></html>\n"
    )


def _verdict(last: Attempt) -> str:
    if last.exit_code is None:
        return '<p class="verdict running">no verdict: it runs, or dslaunch was killed</p>'
    if last.exit_code == 0:
        return '<p class="verdict">every rank ended with 0</p>'
    words = last.report[0].removeprefix("error: ") if last.report else "it ended badly"
    return f'<p class="verdict failed">{escape(words)} <small>exit code {last.exit_code}</small></p>'


def _facts(run: Run) -> str:
    last = run.history.attempts[-1]
    opened = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(run.history.opened_ns / 1e9))
    hosts = [node.host or f"node {node.node_rank}" for node in last.nodes.values()]
    facts = [
        ("program", run.program),
        ("started", opened),
        ("took", in_words(run.history.length_s)),
        ("hosts", f"{len(hosts)}: {fold_names(hosts)}" if hosts else ""),
        ("ranks", str(len(last.ranks)) if last.ranks else ""),
        ("meet at", last.master),
        ("job", last.job_id),
    ]
    rows = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts if value)
    return f"<dl>{rows}</dl>"


def _attempts(history: History) -> str:
    rows = []
    for number, attempt in enumerate(history.attempts):
        end_s = attempt.ended_s if attempt.ended_s is not None else history.length_s
        end = attempt.report[0] if attempt.report else "well" if attempt.exit_code == 0 else "no verdict"
        cells = (
            str(number),
            in_words(attempt.opened_s),
            in_words(end_s - attempt.opened_s),
            str(len(attempt.nodes)),
            str(len(attempt.ranks)),
            end,
        )
        *plain, last = (escape(cell) for cell in cells)
        mark = ' class="bad"' if attempt.exit_code else ""
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in plain)}<td{mark}>{last}</td></tr>")
    names = ("attempt", "from", "took", "hosts", "ranks", "ended")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{content}</section>\n" if content else ""


def _legend(kinds: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<span><i class="{kind}"></i>{words}</span>' for kind, words in kinds)
    return f'<div class="legend">{items}</div>'


def _pre(text: str) -> str:
    """What programs wrote, without the terminal's commands in it."""
    return f"<pre>{escape(_ESCAPES.sub('', text))}</pre>"
