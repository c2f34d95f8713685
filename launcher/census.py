"""Where the ranks of a job are, folded: equal places once, and the odd ones among them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from dslaunch.hostfile import fold_names
from dslaunch.launcher import wire
from dslaunch.launcher.fold import ranges
from dslaunch.launcher.stacks import communicates, main_thread, place

MAX_SHOWN = 8
_MAX_HOSTS = 4
_ODD = "  <- the odd ones"
_STATES = {
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "D": "in uninterruptible sleep",
    "Z": "ended, not collected",
}


class Kind(Enum):
    """What a rank is doing, as far as that tells who keeps whom waiting."""

    COMMUNICATING = auto()
    """Within a call of torch.distributed: it may be waiting for others."""
    ELSEWHERE = auto()
    """Anywhere else."""
    UNABLE = auto()
    """It cannot run: stopped, in uninterruptible sleep, or its host is silent."""
    ENDED = auto()
    """It is not there any more."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks at the same place, ascending."""

    ranks: tuple[int, ...]
    what: str
    kind: Kind


def group(
    hosts: Mapping[int, str], stacks: Iterable[wire.Stack], ends: Mapping[int, int]
) -> tuple[Group, ...]:
    """All ranks by their places, the largest group first.

    `hosts` names each rank's host; `ends` are the codes of those that have ended. Of what is left without a
    stack the host has not answered.
    """
    places: dict[tuple[str, Kind], dict[int, str]] = {}
    told = {stack.rank: stack for stack in stacks}
    for rank in sorted(hosts):
        doing = ""
        if rank in told:
            what, kind, doing = _place(told[rank])
        elif rank in ends:
            what, kind = f"ended with code {ends[rank]}", Kind.ENDED
        else:
            what, kind = "on a host that does not answer", Kind.UNABLE
        places.setdefault((what, kind), {})[rank] = doing
    groups = [
        Group(tuple(ranks), _common(what, set(ranks.values())), kind)
        for (what, kind), ranks in places.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks)))


def _place(stack: wire.Stack) -> tuple[str, Kind, str]:
    """Where it is, by which ranks are folded, and what it does there, which may differ within a place."""
    frames = main_thread(stack.text)
    where = place(frames)
    if stack.state in _STATES:
        return f"{_STATES[stack.state]}{f' in {where}' if where else ''}", Kind.UNABLE, stack.waits_in
    if communicates(frames):
        return f"in {where}", Kind.COMMUNICATING, ""
    doing = "running" if stack.state == "R" else f"waits in {stack.waits_in}" if stack.waits_in else "waiting"
    return f"in {where}" if where else "without a Python stack", Kind.ELSEWHERE, doing


def _common(what: str, doing: set[str]) -> str:
    """The place, and what is done there where all do the same."""
    return f"{what}, {next(iter(doing))}" if len(doing) == 1 and doing != {""} else what


def odd_ones(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Those that the others seem to wait for.

    Where some communicate, it is who does not. Where none or all do, it is all but the one largest group;
    none where no group is the largest.
    """
    if len(groups) < 2:
        return ()
    unable = [group for group in groups if group.kind in (Kind.UNABLE, Kind.ENDED)]
    able = [group for group in groups if group not in unable]
    apart = [group for group in able if group.kind is Kind.ELSEWHERE]
    if able and len(apart) < len(able) and (apart or unable):
        return tuple(group for group in groups if group.kind is not Kind.COMMUNICATING)
    if unable and able:
        return tuple(unable)
    if len(groups[0].ranks) > len(groups[1].ranks):
        return tuple(groups[1:])
    return ()


def lines(groups: Sequence[Group], hosts: Mapping[int, str], *, mark: bool) -> list[str]:
    """One line for each group, at most `MAX_SHOWN`; with `mark` the odd ones are told, always."""
    odd = odd_ones(groups) if mark else ()
    first = [group for group in groups if group in odd][: MAX_SHOWN - 1]
    rest = [group for group in groups if group not in odd][: MAX_SHOWN - len(first)]
    shown = [group for group in groups if group in first or group in rest]
    said = [f"{_who(group, hosts)} {group.what}{_ODD * (group in odd)}" for group in shown]
    left = sum(len(group.ranks) for group in groups if group not in shown)
    return said + ([f"{left} more at {len(groups) - len(shown)} other places"] if left else [])


def _who(group: Group, hosts: Mapping[int, str]) -> str:
    names = list(dict.fromkeys(hosts[rank] for rank in group.ranks))
    where = f" ({fold_names(names)})" if len(names) <= _MAX_HOSTS else f" on {len(names)} hosts"
    if len(set(hosts.values())) == 1:
        where = ""
    if len(group.ranks) == 1:
        return f"rank {group.ranks[0]}{where}"
    return f"ranks {ranges(group.ranks)}{where}"
