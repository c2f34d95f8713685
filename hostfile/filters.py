"""`--include`, `--exclude`, `--num_nodes` and `--num_gpus`: Topology to a smaller Topology.

The meaning is DeepSpeed 0.19.8's: `--include "worker-1@worker-2:0,2"`, hosts always in hostfile order, a
host named again adds its slots, a bare name counts only where the host is not also named with slots.
Differences, all on purpose: slots keep the order they are given in (DeepSpeed sorts them), so that
`worker-1:3,1` gives local rank 0 device 3; ranges, `worker-[0-3]:0-2`; `[::1]:0` for IPv6; and where
DeepSpeed carries on with something else (fewer hosts than asked for, devices that do not exist, no slot
at all) this is an error.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NoReturn

from dslaunch.hostfile.address import parse_name
from dslaunch.hostfile.errors import FilterError, TopologyError, quoted
from dslaunch.hostfile.ranges import expand_indices, expand_names
from dslaunch.hostfile.topology import Host, Topology

_NODE = re.compile(r"(?P<names>\[[^\[\]]*:[^\[\]]*\]|[^:]*)(?::(?P<slots>[^:]*))?", re.DOTALL)
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a topology to launch on, as the command line says it.

    `num_nodes` and `num_gpus` are None, 0 or negative for "all", as in DeepSpeed, whose default is -1.
    """

    include: str = ""
    exclude: str = ""
    num_nodes: int | None = None
    num_gpus: int | None = None


def select(topology: Topology, selection: Selection) -> Topology:
    """The hosts and slots of `topology` that `selection` leaves, in the order of `topology`.

    Raises FilterError where options exclude each other, name what is not there, ask for more than there
    is, or leave nothing.
    """
    include, exclude = selection.include.strip(), selection.exclude.strip()
    if include and exclude:
        raise FilterError(
            "--include and --exclude exclude each other", "keep one: they say the same from two sides"
        )
    for option, count in (("--num_nodes", selection.num_nodes), ("--num_gpus", selection.num_gpus)):
        if count is not None and count >= 0 and (include or exclude):
            other = "--include" if include else "--exclude"
            raise FilterError(
                f"{option} and {other} exclude each other", f"name the hosts and slots in {other} alone"
            )
    if include:
        return _include(topology, _parse_nodes("--include", include, topology))
    if exclude:
        return _exclude(topology, _parse_nodes("--exclude", exclude, topology))
    return _first_slots(_first_hosts(topology, selection.num_nodes), selection.num_gpus)


def _include(topology: Topology, named: dict[str, tuple[int, ...]]) -> Topology:
    return Topology(tuple(replace(h, slots=named[h.name] or h.slots) for h in topology if h.name in named))


def _exclude(topology: Topology, named: dict[str, tuple[int, ...]]) -> Topology:
    kept = []
    for host in topology:
        dropped = (named[host.name] or host.slots) if host.name in named else ()
        if slots := tuple(slot for slot in host.slots if slot not in dropped):
            kept.append(replace(host, slots=slots))
    if not kept:
        raise FilterError("--exclude leaves no slot on any host", f"there are {_hosts(topology)}")
    return Topology(tuple(kept))


def _first_hosts(topology: Topology, num_nodes: int | None) -> Topology:
    if num_nodes is None or num_nodes <= 0:
        return topology
    if num_nodes > len(topology):
        raise FilterError(
            f"--num_nodes={num_nodes} is above the {_count(len(topology), 'host')} there are",
            f"there are {_hosts(topology)}; is it the hostfile you meant?",
        )
    return Topology(topology.hosts[:num_nodes])


def _first_slots(topology: Topology, num_gpus: int | None) -> Topology:
    if num_gpus is None or num_gpus <= 0:
        return topology
    for host in topology:
        if num_gpus > len(host.slots):
            there = _count(len(host.slots), "slot")
            raise FilterError(
                f"--num_gpus={num_gpus} is above the {there} of host {quoted(host.name)}",
                "ask for fewer; or use --include, which can take another number from each host",
            )
    return Topology(tuple(replace(host, slots=host.slots[:num_gpus]) for host in topology))


def _parse_nodes(option: str, text: str, topology: Topology) -> dict[str, tuple[int, ...]]:
    """Host name to the slots named with it, doubles dropped; empty for a host named without slots."""
    hosts = {host.name: host for host in topology}
    named: dict[str, tuple[int, ...]] = {}
    for node in text.split("@"):
        try:
            names, slots = _parse_node(node.strip())
        except TopologyError as error:
            raise FilterError(f"{option}: {error.what}", error.hint) from None
        for name in names:
            if name not in hosts:
                _unknown_host(option, name, topology)
            for slot in slots:
                if slot not in hosts[name].slots:
                    _unknown_slot(option, slot, hosts[name])
            named[name] = tuple(dict.fromkeys(named.get(name, ()) + slots))
    return named


def _parse_node(node: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    match = _NODE.fullmatch(node)
    if match is None:
        raise TopologyError(
            f"more than one ':' in {quoted(node)}",
            "a host reads worker-1 or worker-1:0,2; IPv6 stands in brackets: [::1]:0",
        )
    names = expand_names(match["names"].strip())
    if any("," in name for name in names):
        raise TopologyError(
            f"several hosts in {quoted(node)}", "between hosts stands '@': worker-0@worker-1:0,2"
        )
    names = tuple(parse_name(name) for name in names)
    return names, () if match["slots"] is None else expand_indices(match["slots"])


def _unknown_host(option: str, name: str, topology: Topology) -> NoReturn:
    lowered = {host.name.lower(): host.name for host in topology}
    close = [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, n=3)]
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {_hosts(topology)}"
    if any(name == host.user for host in topology):
        hint = f"name hosts without their user, as '@' stands between hosts; there are {_hosts(topology)}"
    raise FilterError(f"{option}: unknown host {quoted(name)}", hint)


def _unknown_slot(option: str, slot: int, host: Host) -> NoReturn:
    raise FilterError(
        f"{option}: host {quoted(host.name)} has no slot {slot}",
        f"its slots are {_listed(str(s) for s in host.slots)}",
    )


def _hosts(topology: Topology) -> str:
    return f"{_count(len(topology), 'host')}: {_listed(host.name for host in topology)}"


def _listed(words: Iterable[str]) -> str:
    listed = list(words)
    rest = len(listed) - _MAX_LISTED
    return ", ".join(listed[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
