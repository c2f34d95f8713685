"""When kernels run and copies go in one step, and how much of the copies is hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

Interval = tuple[float, float]


def timeline(step: Callable[[torch.Tensor], object], ids: torch.Tensor) -> dict[str, dict[str, object]]:
    """Of one profiled step, in milliseconds from its first event on the GPU; see `spans`."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step(ids)
        torch.cuda.synchronize()
    kinds: dict[str, list[Interval]] = {"kernels": [], "to the host": [], "to the GPU": []}
    names: dict[str, dict[str, int]] = {kind: {} for kind in kinds}
    for event in profiler.events() or []:
        if event.device_type.name != "CUDA":
            continue
        kind = "to the host" if "DtoH" in event.name else "to the GPU" if "HtoD" in event.name else "kernels"
        kinds[kind].append((event.time_range.start / 1e3, event.time_range.end / 1e3))
        if kind != "kernels":
            names[kind][event.name] = names[kind].get(event.name, 0) + 1
    return {kind: {**of_kind, "names": names[kind]} for kind, of_kind in spans(kinds).items()}


def spans(kinds: dict[str, list[Interval]]) -> dict[str, dict[str, object]]:
    """For each kind: its start, end, how long it was busy, and how long of that while kernels ran.

    >>> spans({"kernels": [(1, 5)], "copies": [(4, 7)]})["copies"]
    {'start': 3, 'end': 6, 'busy': 3.0, 'beside kernels': 1.0}
    """
    everything = [interval for intervals in kinds.values() for interval in intervals]
    first = min((start for start, _ in everything), default=0.0)
    found: dict[str, dict[str, object]] = {}
    for kind, intervals in kinds.items():
        if intervals:
            found[kind] = {
                "start": min(start for start, _ in intervals) - first,
                "end": max(end for _, end in intervals) - first,
                "busy": covered(intervals),
                "beside kernels": covered(intervals)
                + covered(kinds["kernels"])
                - covered([*intervals, *kinds["kernels"]]),
            }
    return found


def covered(intervals: Iterable[Interval]) -> float:
    """The length of their union."""
    ordered: Sequence[Interval] = sorted(intervals)
    total, reached = 0.0, float("-inf")
    for start, end in ordered:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
