"""What holds for every hostfile and every filter: generated ones, and plain garbage."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dslaunch.hostfile import (
    Host,
    HostfileError,
    Selection,
    Topology,
    TopologyError,
    parse_hostfile,
    parse_hostfile_bytes,
    select,
)

LETTERS = "abcwxyzABC0123456789"
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,8}(\.[a-z]{1,3})?", fullmatch=True)
ipv6 = st.integers(0, 2**128 - 1).map(lambda number: str(ipaddress.IPv6Address(number)))
users = st.none() | st.from_regex(r"[a-z_][a-z0-9_.-]{0,5}", fullmatch=True)
ports = st.none() | st.integers(1, 65535)
hosts = st.builds(
    lambda name, num_slots, user, port, python: Host(name, tuple(range(num_slots)), user, port, python),
    names | ipv6,
    st.integers(1, 16),
    users,
    ports,
    st.none() | st.from_regex(r"/[!-~\u00e4]{0,8}", fullmatch=True),
)
topologies = st.lists(hosts, min_size=1, max_size=6, unique_by=lambda host: host.name.lower()).map(
    lambda chosen: Topology(tuple(chosen))
)
grammar_text = st.text("w01-[],:@=#.;$%slotmax_pyhn/ \t\r\n\ufeff", max_size=60)


@dataclass(frozen=True)
class Decoration:
    """What may stand in a hostfile without changing its meaning."""

    mark: str
    line_end: str
    before: list[str]
    blanks: str
    comment: str
    bracketed: bool


decorations = st.builds(
    Decoration,
    mark=st.sampled_from(["", "\ufeff"]),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    before=st.lists(st.sampled_from(["", "   ", "# a comment", "\t# w0 slots=4"]), max_size=3),
    blanks=st.sampled_from([" ", "\t", "   ", " \t ", "\u00a0"]),
    comment=st.sampled_from(["", " # note", "\t#", "#x slots=3"]),
    bracketed=st.booleans(),
)


def printed(topology: Topology, how: Decoration) -> str:
    """A hostfile that says `topology`; its slots are 0 and up."""
    lines = list(how.before)
    for host in topology:
        name = host.name
        if ":" in name and (how.bracketed or host.port is not None):
            name = f"[{name}]"
        user = "" if host.user is None else f"{host.user}@"
        port = "" if host.port is None else f":{host.port}"
        python = "" if host.python is None else f"python={host.python}{how.blanks}"
        lines.append(f"{user}{name}{port}{how.blanks}{python}slots={len(host.slots)}{how.comment}")
    return how.mark + how.line_end.join(lines)


@given(topologies, decorations)
def test_a_printed_topology_reads_back(topology: Topology, how: Decoration) -> None:
    text = printed(topology, how)
    assert parse_hostfile(text, "hf") == topology
    assert parse_hostfile_bytes(text.encode(), "hf") == topology


def outcome(attempt: Callable[[], Topology]) -> Topology | TopologyError:
    """What an attempt comes to; any other exception passes and fails the test."""
    try:
        return attempt()
    except TopologyError as error:
        return error


@given(grammar_text | st.text())
@example("w[0-9999999999999999999999] slots=1")
@example(f"w slots={'9' * 5000}")
@example("w[0-99][0-99][0-99][0-99] slots=1")
@example("\ud800 slots=1")
def test_any_text_is_a_topology_or_a_topology_error(text: str) -> None:
    match outcome(lambda: parse_hostfile(text, "hf")):
        case Topology() as topology:
            assert len(topology) > 0
            assert len({host.name for host in topology}) == len(topology)
            assert all(host.slots == tuple(range(len(host.slots))) and host.slots for host in topology)
        case HostfileError() as error:
            lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
            assert error.line == lines[error.line_number - 1].strip()
            assert str(error).startswith(f"hf:{error.line_number}: ")
            assert str(error).isprintable()
            assert error.hint
            assert error.hint.isprintable()
        case error:
            assert str(error) == "hf: no host in this file"


@given(st.binary() | grammar_text.map(str.encode))
def test_any_bytes_are_a_topology_or_a_topology_error(data: bytes) -> None:
    match outcome(lambda: parse_hostfile_bytes(data, "hf")):
        case Topology() as topology:
            assert topology == parse_hostfile(data.decode(), "hf")
        case error:
            assert str(error).isprintable()


@given(names, st.integers(0, 40), st.integers(0, 20), st.sampled_from([0, 3]))
def test_a_range_is_its_names_one_by_one(stem: str, low: int, more: int, width: int) -> None:
    numerals = [str(number).zfill(width) for number in range(low, low + more + 1)]
    listed = "".join(f"{stem}-{numeral} slots=2\n" for numeral in numerals)
    ranged = f"{stem}-[{numerals[0]}-{numerals[-1]}] slots=2"
    assert parse_hostfile(ranged, "hf") == parse_hostfile(listed, "hf")


@st.composite
def parts(draw: st.DrawFn) -> tuple[Topology, dict[str, tuple[int, ...]]]:
    """A topology and some of its slots by host, in any order: not none of them, and not all."""
    topology = draw(topologies)
    everything = [(host.name, slot) for host in topology for slot in host.slots]
    if len(everything) == 1:
        topology = Topology((Host("two", (0, 1)),))
        everything = [("two", 0), ("two", 1)]
    some = draw(st.lists(st.sampled_from(everything), min_size=1, max_size=len(everything) - 1, unique=True))
    chosen: dict[str, tuple[int, ...]] = {}
    for name, slot in some:
        chosen[name] = (*chosen.get(name, ()), slot)
    return topology, chosen


def named(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def filter_text(chosen: dict[str, tuple[int, ...]]) -> str:
    return "@".join(f"{named(name)}:{','.join(map(str, slots))}" for name, slots in chosen.items())


@given(parts())
def test_include_and_exclude_partition_the_topology(
    part: tuple[Topology, dict[str, tuple[int, ...]]],
) -> None:
    topology, chosen = part
    included = select(topology, Selection(include=filter_text(chosen)))
    excluded = select(topology, Selection(exclude=filter_text(chosen)))
    inside = {(host.name, slot) for host in included for slot in host.slots}
    outside = {(host.name, slot) for host in excluded for slot in host.slots}
    assert inside.isdisjoint(outside)
    assert inside | outside == {(host.name, slot) for host in topology for slot in host.slots}
    assert {host.name: host.slots for host in included} == chosen
    order = [host.name for host in topology]
    for kept in (included, excluded):
        assert [host.name for host in kept] == sorted((host.name for host in kept), key=order.index)


@given(topologies, st.integers(-1, 8), st.integers(-1, 20))
def test_numbers_are_a_prefix_or_an_error(topology: Topology, num_nodes: int, num_gpus: int) -> None:
    selection = Selection(num_nodes=num_nodes, num_gpus=num_gpus)
    kept = topology.hosts[: num_nodes if num_nodes > 0 else None]
    if num_nodes > len(topology) or any(num_gpus > len(host.slots) for host in kept):
        with pytest.raises(TopologyError):
            select(topology, selection)
    else:
        chosen = select(topology, selection)
        assert [host.name for host in chosen] == [host.name for host in kept]
        for host, whole in zip(chosen, kept, strict=True):
            assert host.slots == whole.slots[: num_gpus if num_gpus > 0 else None]


@given(
    topologies, grammar_text | st.text(), grammar_text, st.none() | st.integers(), st.none() | st.integers()
)
def test_any_filter_is_a_part_of_the_topology_or_a_topology_error(
    topology: Topology, include: str, exclude: str, num_nodes: int | None, num_gpus: int | None
) -> None:
    for selection in (
        Selection(include=include),
        Selection(exclude=exclude),
        Selection(include, exclude, num_nodes, num_gpus),
        Selection(num_nodes=num_nodes, num_gpus=num_gpus),
    ):
        match outcome(partial(select, topology, selection)):
            case Topology() as chosen:
                slots = {host.name: set(host.slots) for host in topology}
                assert len(chosen) > 0
                assert all(host.slots and set(host.slots) <= slots[host.name] for host in chosen)
            case error:
                assert str(error).isprintable()
                assert error.hint.isprintable()


def deepspeed_filter(pool: dict[str, list[int]], text: str, include: bool) -> dict[str, list[int]] | None:
    """What DeepSpeed 0.19.8 makes of a filter: slots by host, or None where it raises ValueError."""
    wanted: dict[str, set[int]] = {}
    try:
        for node in text.split("@"):
            if ":" in node:
                name, numbers = node.split(":")
                wanted.setdefault(name, set()).update(int(number) for number in numbers.split(","))
            else:
                wanted.setdefault(node, set())
    except ValueError:
        return None
    if any(name not in pool or not slots <= set(pool[name]) for name, slots in wanted.items()):
        return None
    result = {}
    for name, slots in pool.items():
        if include:
            left = sorted(wanted[name]) or slots if name in wanted else []
        else:
            left = [
                slot for slot in slots if name not in wanted or (wanted[name] and slot not in wanted[name])
            ]
        if left:
            result[name] = left
    return result


nodes = st.builds(
    lambda name, slots: name + (f":{slots}" if slots is not None else ""),
    st.sampled_from(["w0", "w1", "w2", "w9", ""]),
    st.none() | st.lists(st.sampled_from("0123x "), max_size=4).map(",".join),
)


@given(st.lists(nodes, min_size=1, max_size=4).map("@".join), st.booleans())
def test_filters_agree_with_deepspeed(text: str, include: bool) -> None:
    pool = {"w0": [0, 1, 2, 3], "w1": [0, 1, 2, 3], "w2": [0, 1]}
    topology = Topology(tuple(Host(name, tuple(slots)) for name, slots in pool.items()))
    theirs = deepspeed_filter(pool, text, include) if text else pool
    chosen = outcome(
        lambda: select(topology, Selection(include=text) if include else Selection(exclude=text))
    )
    # DeepSpeed sorts slots, where we keep the user's order; and where nothing is left it raises later.
    ours = {host.name: sorted(host.slots) for host in chosen} if isinstance(chosen, Topology) else {}
    assert ours == (theirs or {})
