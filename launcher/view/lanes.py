"""Bars over time, as HTML: how nodes started, and what each rank did. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from html import escape

from dslaunch.launcher.verdict import how_it_ended
from dslaunch.launcher.view.history import Attempt, NodeLife, RankLife
from dslaunch.launcher.view.usage import Usage, activities, thinned

_MAX_STRETCHES = 12
_SHOWN_NODES = 24
_MANY_NODES = 32
_ENDED_WELL = (None, 0, -signal.SIGTERM)
"""Or because of others."""
_LONGEST_WAIT = 20.0
"""Of the time until all ranks had started: a first output that is later is beyond the chart's edge."""


def start_up(attempt: Attempt) -> str:
    """A bar for each node, in the order of how long it took; the fast ones of many are folded away."""
    if attempt.planned_s is None:
        return ""
    nodes = sorted(attempt.nodes.values(), key=lambda node: -_up_s(attempt, node))
    started_s = max((_up_s(attempt, node) for node in nodes), default=0.0)
    spoke_s = max((rank.spoke_s - attempt.opened_s for rank in attempt.ranks if rank.spoke_s), default=0.0)
    end_s = max(started_s, min(spoke_s, started_s * _LONGEST_WAIT), 1e-3)
    lanes = [_lane(node.host, "", _phases(attempt, node, end_s)) for node in nodes]
    shown, folded = lanes[:_SHOWN_NODES], lanes[_SHOWN_NODES:]
    more = (
        f"<details><summary>{len(folded)} faster ones</summary>{''.join(folded)}</details>" if folded else ""
    )
    return f"{axis(0.0, end_s)}{''.join(shown)}{more}"


def _up_s(attempt: Attempt, node: NodeLife) -> float:
    """How long it took until all its ranks had started."""
    times = [rank.started_s for rank in node.ranks.values() if rank.started_s is not None]
    return max([*times, node.ready_s or attempt.opened_s]) - attempt.opened_s


def _phases(attempt: Attempt, node: NodeLife, end_s: float) -> str:
    opened_s = attempt.opened_s
    ready_s = opened_s if node.ready_s is None else node.ready_s
    planned_s = attempt.planned_s or ready_s
    up_s = opened_s + _up_s(attempt, node)
    spoken = [rank.spoke_s for rank in node.ranks.values() if rank.spoke_s is not None]
    phases = [
        ("reach", opened_s, ready_s, "reached"),
        ("wait", ready_s, planned_s, "waited for the other hosts"),
        ("spawn", planned_s, up_s, "ranks started"),
        ("load", up_s, max(spoken, default=up_s), "until all ranks had written something"),
    ]
    return "".join(
        _bar(kind, begin_s - opened_s, until_s - opened_s, 0.0, end_s, f"{words}: {until_s - begin_s:.2f} s")
        for kind, begin_s, until_s, words in phases
        if until_s > begin_s
    )


def rank_lanes(attempt: Attempt, usage: Usage, end_s: float) -> str:
    """What every rank did, under its host; of many hosts, only those are open where something went wrong."""
    hosts = []
    for node in attempt.nodes.values():
        ended_badly = any(rank.returncode not in _ENDED_WELL for rank in node.ranks.values())
        is_open = " open" if len(attempt.nodes) <= _MANY_NODES or ended_badly else ""
        lanes = "".join(
            _lane(f"rank {rank.rank}", _end(rank), _stretches(attempt, rank, usage, end_s))
            for rank in node.ranks.values()
        )
        hosts.append(
            f"<details{is_open}><summary>{escape(node.host)}{_how_closed(node)}</summary>{lanes}</details>"
        )
    return f"{axis(attempt.opened_s, end_s)}{''.join(hosts)}"


def _how_closed(node: NodeLife) -> str:
    is_odd = node.reason and "exited with code 0" not in node.reason and node.reason != "ended"
    return f" <small>{escape(node.reason)}</small>" if is_odd else ""


def _end(rank: RankLife) -> str:
    if rank.returncode is None:
        return "" if rank.ended_s is None else "lost"
    return "" if rank.returncode == 0 else how_it_ended(rank.returncode)


def _stretches(attempt: Attempt, rank: RankLife, usage: Usage, end_s: float) -> str:
    """Until its first output a rank starts; then it is what its samples say, or simply runs."""
    if rank.started_s is None:
        return ""
    until_s = rank.ended_s if rank.ended_s is not None else attempt.ended_s or end_s
    spoke_s = min(rank.spoke_s if rank.spoke_s is not None else rank.started_s, until_s)
    parts = [("load", rank.started_s, spoke_s), ("run", spoke_s, until_s)]
    samples = [one for one in usage.ranks.get(rank.rank, ()) if spoke_s <= one.at_s <= until_s]
    stretches = list(activities(samples))
    if len(stretches) > _MAX_STRETCHES:
        stretches = list(activities(thinned(samples, _MAX_STRETCHES)))
    parts += [(kind, begin_s, stop_s) for begin_s, stop_s, kind in stretches if kind != "busy"]
    bars = [
        _bar(kind, begin_s, stop_s, attempt.opened_s, end_s, f"{kind} {stop_s - begin_s:.1f} s")
        for kind, begin_s, stop_s in parts
        if stop_s > begin_s
    ]
    if rank.returncode:
        bars.append(_bar("bad", until_s, until_s, attempt.opened_s, end_s, how_it_ended(rank.returncode)))
    return "".join(bars)


def _lane(name: str, note: str, bars: str) -> str:
    words = f"<em>{escape(note)}</em>" if note else ""
    return f'<div class="lane"><b>{escape(name)}</b><div class="track">{bars}</div>{words}</div>'


def _bar(kind: str, begin_s: float, until_s: float, left_s: float, right_s: float, title: str) -> str:
    scale = 100 / max(right_s - left_s, 1e-9)
    left = max(0.0, min(100.0, (begin_s - left_s) * scale))
    width = max(0.0, min(100.0 - left, (until_s - begin_s) * scale))
    return f'<i class="{kind}" style="left:{left:.2f}%;width:{width:.2f}%" title="{escape(title)}"></i>'


def axis(left_s: float, right_s: float) -> str:
    """Times above a chart, at round numbers."""
    scale = 100 / max(right_s - left_s, 1e-9)
    marks = "".join(
        f'<span style="left:{(at_s - left_s) * scale:.2f}%">{in_words(at_s)}</span>'
        for at_s in _ticks(left_s, right_s)
    )
    return f'<div class="lane axis"><b></b><div class="track">{marks}</div></div>'


def _ticks(left_s: float, right_s: float) -> Iterator[float]:
    step = next(
        (step for step in _STEPS if (right_s - left_s) / step <= 8),
        (right_s - left_s) / 8,
    )
    number = int(left_s // step)
    while (at_s := number * step) <= right_s:
        if at_s >= left_s:
            yield at_s
        number += 1


_STEPS: Sequence[float] = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30),
    *(60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400),
)


def in_words(seconds: float) -> str:
    """`0.25 s`, `12 s`, `3:20`, `2:03:20`"""
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
