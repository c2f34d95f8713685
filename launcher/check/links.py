"""Judge how fast pairs of hosts are: which link is slow, or which host is. Pure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dslaunch.launcher.check.host_answer import Finding, Severity
from dslaunch.launcher.check.pairwise import MARK

_SLOW_SHARE = 0.4
"""Of the upper quartile, which is that of good links also where one of three hosts is slow."""
_MIN_PAIRS = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """All-reduces between two. `gbps` is what each sends, in 10^9 bits a second; 0 if it failed."""

    names: tuple[str, str]
    backend: str
    gbps: float
    error: str


def pair_from_line(line: str, names: Mapping[int, str]) -> Pair | None:
    """What a rank has printed of a pair; None for any other line."""
    if not line.startswith(MARK):
        return None
    record = json.loads(line.removeprefix(MARK))
    first, second = sorted(record["ranks"])
    seconds = record.get("seconds")
    gbps = 8 * record["num_bytes"] / seconds / 1e9 if seconds else 0.0
    return Pair((names[first], names[second]), record["backend"], gbps, record.get("error", ""))


def judge_pairs(pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Failed pairs; hosts all of whose links are slow; other links that are slow."""
    failed = {pair.names: pair for pair in reversed(pairs) if pair.error}  # both ranks tell, the first counts
    for pair in reversed(failed.values()):
        yield Finding(
            Severity.ERROR,
            pair.names,
            f"all-reduce over {pair.backend} between them failed: {pair.error}",
            "NCCL_DEBUG=INFO tells which way it takes; see NCCL_SOCKET_IFNAME and NCCL_IB_DISABLE",
        )
    whole = [pair for pair in pairs if not pair.error]
    if len(whole) < _MIN_PAIRS:
        return
    good_gbps = sorted(pair.gbps for pair in whole)[3 * len(whole) // 4]
    slow = [pair for pair in whole if pair.gbps < _SLOW_SHARE * good_gbps]
    names = dict.fromkeys(name for pair in whole for name in pair.names)
    blamed = {
        name
        for name in names
        if (own := [pair for pair in whole if name in pair.names])
        and len(own) > 1
        and all(pair in slow for pair in own)
    }
    remedy = "look at cable, adapter, switch port and MTU; NCCL_DEBUG=INFO tells which way is taken"
    for name in (name for name in names if name in blamed):
        best = max(pair.gbps for pair in slow if name in pair.names)
        what = f"all-reduces run at {best:.2f} Gb/s with it, at {good_gbps:.2f} in good pairs"
        yield Finding(Severity.WARNING, (name,), what, remedy)
    for pair in slow:
        if not blamed & set(pair.names):
            what = f"all-reduces run at {pair.gbps:.2f} Gb/s between them, at {good_gbps:.2f} in good pairs"
            yield Finding(Severity.WARNING, pair.names, what, remedy)


def pairs_in_words(pairs: Sequence[Pair]) -> str:
    """One line: how fast most pairs are, and the slowest; "" for none."""
    whole = sorted((pair for pair in pairs if not pair.error), key=lambda pair: pair.gbps)
    if not whole:
        return ""
    median = statistics.median(pair.gbps for pair in whole)
    number = "1 pair" if len(whole) == 1 else f"{len(whole)} pairs"
    slowest = f"{' and '.join(whole[0].names)} at {whole[0].gbps:.2f}"
    return f"all-reduce over {whole[0].backend}, {number}: {median:.2f} Gb/s in the middle, slowest {slowest}"
