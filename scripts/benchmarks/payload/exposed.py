"""Which share of a step nothing but communication runs on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

Interval = tuple[float, float]


def exposed_share(step: Callable[[torch.Tensor], object], ids: torch.Tensor) -> float:
    """Of one profiled step: the time with an NCCL kernel and no other, of that from first to last kernel."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step(ids)
        torch.cuda.synchronize()
    communication: list[Interval] = []
    other: list[Interval] = []
    for event in profiler.events() or []:
        if event.device_type.name == "CUDA":
            kind = communication if "nccl" in event.name.lower() else other
            kind.append((event.time_range.start, event.time_range.end))
    return share_alone(communication, other)


def share_alone(ours: Iterable[Interval], others: Iterable[Interval]) -> float:
    """The share of the whole span that `ours` cover and `others` do not; 0 where there is nothing.

    >>> share_alone([(0, 4)], [(2, 10)])
    0.2
    """
    ours, others = list(ours), list(others)
    everything = _union([*ours, *others])
    if not everything:
        return 0.0
    span = everything[-1][1] - everything[0][0]
    covered = sum(end - start for start, end in everything)
    without_ours = sum(end - start for start, end in _union(others))
    return (covered - without_ours) / span if span else 0.0


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
