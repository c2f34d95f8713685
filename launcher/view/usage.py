"""What ranks and devices used, out of the lines of `usage.jsonl`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from dslaunch.launcher.view.history import records

_IDLE_SHARE = 0.03
"""Of a processor."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankSample:
    """`state` is the letter of proc(5), `cpu_s` the processor time since the rank's start."""

    at_s: float
    state: str
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """`busy` is the share of time, from 0 to 1, in which the device computed."""

    at_s: float
    memory_bytes: int
    busy: float


@dataclass(frozen=True, slots=True)
class Usage:
    """Series in the order of time: of ranks, and of devices by node rank and slot."""

    ranks: Mapping[int, Sequence[RankSample]] = field(default_factory=dict)
    devices: Mapping[tuple[int, int], Sequence[DeviceSample]] = field(default_factory=dict)


def usage(lines: Iterable[str], opened_ns: int, from_s: float, to_s: float) -> Usage:
    """What was used in a part of a run that was opened at `opened_ns` since the epoch."""
    ranks: dict[int, list[RankSample]] = {}
    devices: dict[tuple[int, int], list[DeviceSample]] = {}
    for record in records(lines):
        at_s = (int(record["launcher_time_ns"]) - opened_ns) / 1e9
        if not from_s <= at_s <= to_s:
            continue
        for words in record.get("ranks", ()):
            rank, state, cpu_ms, rss_kib = words.split()
            sample = RankSample(at_s, state, int(cpu_ms) / 1e3, int(rss_kib) << 10)
            ranks.setdefault(int(rank), []).append(sample)
        for words in record.get("devices", ()):
            slot, used_mib, percent = map(int, words.split())
            place = (int(record["node_rank"]), slot)
            devices.setdefault(place, []).append(DeviceSample(at_s, used_mib << 20, percent / 100))
    return Usage(ranks, devices)


def thinned(series: Sequence[T], most: int) -> Sequence[T]:
    """At most so many of them, evenly spread, the first and the last among them."""
    if len(series) <= most:
        return series
    return [series[i * (len(series) - 1) // (most - 1)] for i in range(most)]


def activities(samples: Sequence[RankSample]) -> Iterator[tuple[float, float, str]]:
    """Stretches `(from_s, to_s, kind)` between samples, equal neighbours as one.

    Kinds are `busy`, `idle` (hardly any processor time), `blocked` (uninterruptible) and `stopped`.
    """
    begun_s, last = 0.0, ""
    for before, after in pairwise(samples):
        kind = _kind(before, after)
        if kind != last:
            if last:
                yield begun_s, before.at_s, last
            begun_s, last = before.at_s, kind
    if last:
        yield begun_s, samples[-1].at_s, last


def _kind(before: RankSample, after: RankSample) -> str:
    if after.state in "Tt":
        return "stopped"
    share = (after.cpu_s - before.cpu_s) / max(after.at_s - before.at_s, 1e-9)
    if share >= _IDLE_SHARE:
        return "busy"
    return "blocked" if after.state == "D" else "idle"
