"""The last words of a launch: which rank, host and device, how it ended, what it said. Pure text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dslaunch.launcher.last_words import last_words
from dslaunch.launcher.plan import LaunchPlan
from dslaunch.launcher.verdict import (
    Interrupted,
    JobHung,
    LaunchFailed,
    NodeLost,
    PeerEnded,
    Preempted,
    RankEnd,
    RankFailed,
    Verdict,
    how_it_ended,
)

_MAX_LISTED = 8

Tail = Callable[[int], Sequence[str]]
"""The last lines a rank wrote: its stderr, or its stdout where it wrote none."""
Log = Callable[[int], str]
"""Where all is that a rank wrote; "" for nowhere."""


def report(
    verdict: Verdict,
    plan: LaunchPlan,
    device: Callable[[int], str],
    tail: Tail,
    places: Sequence[str] = (),
    log: Log = lambda rank: "",
) -> list[str]:
    """The lines that name the cause of a bad end; none after a good one.

    `device(slot)` names a slot; `places` tell where the other ranks were before they were ended.
    """
    lines = _cause(verdict, plan, device, tail)
    if isinstance(verdict.cause, RankFailed) and log(verdict.cause.end.rank):
        lines.append(f"all that it wrote: {log(verdict.cause.end.rank)}")
    if places and not isinstance(verdict.cause, JobHung | None):
        who = "the ranks were:" if isinstance(verdict.cause, Interrupted) else "the others were:"
        lines += [who, *(f"    {place}" for place in places)]
    if verdict.collateral and not isinstance(verdict.cause, LaunchFailed):
        lines.append(_collateral(verdict.collateral))
    for node_rank in verdict.silent_nodes:
        lines.append(f"host {plan.nodes[node_rank].host} did not say that its ranks are gone: look there")
    return lines


def particulars(
    verdict: Verdict, plan: LaunchPlan, device: Callable[[int], str], tail: Tail, log: Log
) -> dict[str, object]:
    """What the report says of the rank or the host that was the cause, as values."""
    match verdict.cause:
        case RankFailed(end):
            assert end.returncode is not None
            node, rank = plan.ranks[end.rank]
            return {
                "host": node.host,
                "rank": end.rank,
                "local_rank": rank.local_rank,
                "device": device(rank.slot),
                "how": how_it_ended(end.returncode),
                "note": end.note,
                "last_lines": last_words(tail(end.rank)),
                "log": log(end.rank) or None,
            }
        case NodeLost(node_rank) | Preempted(node_rank) | LaunchFailed(int(node_rank)):
            node = plan.nodes[node_rank]
            return {"host": node.host, "ranks": [rank.rank for rank in node.ranks]}
        case _:
            return {}


def _cause(verdict: Verdict, plan: LaunchPlan, device: Callable[[int], str], tail: Tail) -> list[str]:
    match verdict.cause:
        case None:
            return []
        case RankFailed(end):
            assert end.returncode is not None
            node, rank = plan.ranks[end.rank]
            said = last_words(tail(end.rank))
            lines = [
                f"error: rank {end.rank} (local rank {rank.local_rank}, {device(rank.slot)}) on {node.host} "
                f"{how_it_ended(end.returncode)}" + (f" ({end.note})" if end.note else "")
            ]
            return lines + (["its last lines:", *(f"    {line}" for line in said)] if said else [])
        case NodeLost(node_rank, reason):
            node = plan.nodes[node_rank]
            ranks = _ranks([rank.rank for rank in node.ranks])
            return [f"error: host {node.host} ({ranks}) was lost: {reason}"]
        case Preempted(node_rank, number):
            how = how_it_ended(-number).removeprefix("was killed by ")
            what = "was told to end by someone there, a batch system perhaps"
            return [f"error: preempted: host {plan.nodes[node_rank].host} {what} ({how})"]
        case LaunchFailed(None, what, hint):
            return [f"error: {what}", f"hint: {hint}"]
        case LaunchFailed(node_rank, what, hint):
            assert node_rank is not None
            return [f"error: {plan.nodes[node_rank].host}: {what}", f"hint: {hint}"]
        case JobHung(after_s, what, _, places):
            return [f"error: the job hangs: for {after_s:g} s {what}", *(f"    {place}" for place in places)]
        case PeerEnded(_, lines):
            return list(lines)
        case Interrupted(number):
            return [f"ended by {how_it_ended(-number).removeprefix('was killed by ')}"]


def _collateral(ends: Sequence[RankEnd]) -> str:
    return f"ended because of it: {_ranks([end.rank for end in ends])}"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:_MAX_LISTED])
    more = f" and {len(ranks) - _MAX_LISTED} more" if len(ranks) > _MAX_LISTED else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"
