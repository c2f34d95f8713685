"""What the flight recorders of all ranks say together: which collective waits, and for whom. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dslaunch.launcher.flight_dump import Collective, DumpError, GroupTrace, read_dump
from dslaunch.launcher.fold import ranges

_MAX_LINES = 8

Traces = Mapping[int, GroupTrace]
"""Of one process group, by global rank."""


def flight_lines(dumps: Iterable[tuple[int, bytes]]) -> list[str]:
    """Words about each group that waits, of the dumps with their global ranks. None for no dumps."""
    groups: dict[str, dict[int, GroupTrace]] = defaultdict(dict)
    unread: list[int] = []
    has_read = False
    for rank, data in dumps:
        try:
            traces = read_dump(data)
        except DumpError:
            unread.append(rank)
            continue
        has_read = True
        for name, trace in traces.items():
            groups[name][rank] = trace
    told = [line for traces in groups.values() for line in _group_lines(traces)]
    told = told[:_MAX_LINES]
    if has_read and not told:
        told = ["no collective waits for a rank"]
    return told + ([f"the dumps of {_ranks(unread)} cannot be read"] if unread else [])


def _group_lines(traces: Traces) -> list[str]:
    members = sorted({member for trace in traces.values() for member in trace.members} or set(traces))
    silent = [rank for rank in members if rank not in traces]
    behind = min(trace.last for trace in traces.values())
    ahead = max(trace.last for trace in traces.values())
    if behind < ahead:
        return _missing(traces, behind + 1, silent)
    mismatch = _mismatch(traces)
    if mismatch:
        return mismatch
    waiting = [rank for rank, trace in traces.items() if trace.completed < trace.last]
    if not waiting or silent:
        newest = _shown(traces, ahead)
        if silent and waiting:
            return [f"{newest} was entered by {_ranks(list(traces))}; no dump from {_ranks(silent)}"]
        return []
    all_of_them = f"all {len(traces)} ranks"
    return [f"{_shown(traces, ahead)} was entered by {all_of_them}, and is not complete on {_ranks(waiting)}"]


def _missing(traces: Traces, number: int, silent: Sequence[int]) -> list[str]:
    """The first collective that some have entered and others have not, and where these were last."""
    entered = [rank for rank, trace in traces.items() if trace.last >= number]
    late = [rank for rank, trace in traces.items() if trace.last < number]
    lines = [
        f"{_shown(traces, number)} was entered by {_ranks(entered)} and not by {_ranks(late)}  <- missing"
    ]
    before = {rank: traces[rank].collectives.get(number - 1) for rank in late}
    places = {each.where for each in before.values() if each is not None}
    if len(places) == 1 and number > 1:
        lines.append(f"before it {_ranks(late)} had entered {_of(before[late[0]])} #{number - 1}")
    return lines + ([f"no dump from {_ranks(silent)}"] if silent else [])


def _mismatch(traces: Traces) -> list[str]:
    """Ranks whose newest collectives have one number, and are not the same."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for rank, trace in traces.items():
        newest = trace.collectives.get(trace.last)
        if newest is not None and newest.state != "completed":
            kinds[newest.name].append(rank)
    if len(kinds) < 2:
        return []
    number = max(trace.last for trace in traces.values())
    group = next(iter(traces.values())).name
    parts = [
        f"{name} on {_ranks(ranks)}" for name, ranks in sorted(kinds.items(), key=lambda kind: len(kind[1]))
    ]
    return [f"collective #{number} of {group} is not the same everywhere: {', '.join(parts)}"]


def _shown(traces: Traces, number: int) -> str:
    """`all_reduce train.py:212 (#7 of default_pg)`."""
    collective = next(
        (trace.collectives[number] for trace in traces.values() if number in trace.collectives), None
    )
    group = next(iter(traces.values())).name
    return f"{_of(collective)} (#{number} of {group})"


def _of(collective: Collective | None) -> str:
    if collective is None:
        return "a collective"
    where = collective.where
    return where if where.startswith(f"{collective.name} ") else f"{collective.name} {where}".rstrip()


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(sorted(ranks))}"
