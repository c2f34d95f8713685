"""Memory and use of devices over time, as SVG: a small chart for each host. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from dslaunch.launcher.view.history import Attempt, NodeLife
from dslaunch.launcher.view.usage import Usage, thinned

_POINTS = 60
_FEW_POINTS = 24
_MANY_RANKS = 256
_WIDTH, _HEIGHT, _TOP = 1000, 100, 94

Series = Sequence[tuple[float, float]]


def usage_charts(attempt: Attempt, usage: Usage, end_s: float) -> str:
    """For each host the memory of its ranks, and memory and use of its devices; "" where nothing is known."""
    most = _POINTS if len(attempt.ranks) <= _MANY_RANKS else _FEW_POINTS
    span = (attempt.opened_s, end_s)
    return "".join(_host(node, usage, span, most) for node in attempt.nodes.values())


def _host(node: NodeLife, usage: Usage, span: tuple[float, float], most: int) -> str:
    memory = {
        f"rank {rank}": [(one.at_s, float(one.memory_bytes)) for one in thinned(usage.ranks[rank], most)]
        for rank in node.ranks
        if rank in usage.ranks
    }
    devices = {
        slot: thinned(series, most)
        for (place, slot), series in usage.devices.items()
        if place == node.node_rank
    }
    used = {
        f"device {slot}": [(one.at_s, float(one.memory_bytes)) for one in series]
        for slot, series in devices.items()
    }
    busy = {f"device {slot}": [(one.at_s, one.busy) for one in series] for slot, series in devices.items()}
    charts = [
        _chart("memory of the ranks", memory, span, _most(memory), in_bytes(_most(memory))),
        _chart("memory of the devices", used, span, _most(used), in_bytes(_most(used))),
        _chart("devices busy", busy, span, 1.0, "100 %"),
    ]
    drawn = "".join(charts)
    return f"<figure><figcaption>{escape(node.host)}</figcaption>{drawn}</figure>" if drawn else ""


def _most(lines: Mapping[str, Series]) -> float:
    return max((value for series in lines.values() for _, value in series), default=0.0)


def _chart(
    name: str, lines: Mapping[str, Series], span: tuple[float, float], top: float, top_words: str
) -> str:
    left_s, right_s = span
    drawn = "".join(
        f'<polyline points="{_points(series, left_s, right_s, top)}"><title>{label}</title></polyline>'
        for label, series in lines.items()
        if len(series) > 1
    )
    if not drawn:
        return ""
    return (
        f'<div class="chart"><small>{name}, up to {top_words}</small>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none">{drawn}</svg></div>'
    )


def _points(series: Series, left_s: float, right_s: float, top: float) -> str:
    across, up = _WIDTH / max(right_s - left_s, 1e-9), _TOP / (top or 1.0)
    return " ".join(f"{(at_s - left_s) * across:.0f},{_HEIGHT - value * up:.0f}" for at_s, value in series)


def in_bytes(number: float) -> str:
    """`1.5 GiB`"""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 1 << power:
            return f"{number / (1 << power):.1f} {unit}"
    return f"{number:.0f} bytes"
