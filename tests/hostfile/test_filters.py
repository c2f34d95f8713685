"""Filters by example: DeepSpeed 0.19.8's meaning, our additions, every error word for word."""

from __future__ import annotations

import pytest

from dslaunch.hostfile import FilterError, Selection, Topology, parse_hostfile, select

HOSTS = parse_hostfile("worker-0 slots=4\nworker-1 slots=4\nworker-2 slots=2\n", "hf")
ADDRESSES = parse_hostfile("root@gpu:2222 slots=2\n::1 slots=2\n[fe80::2]:22 slots=1\n", "hf")


def outcome(topology: Topology, selection: Selection) -> str:
    """A topology as text: `worker-0:0,1 worker-1:3`."""
    chosen = select(topology, selection)
    return " ".join(f"{host.name}:{','.join(map(str, host.slots))}" for host in chosen)


def test_no_filter_leaves_everything() -> None:
    assert select(HOSTS, Selection()) == HOSTS
    assert select(HOSTS, Selection(include="", exclude="  ", num_nodes=None, num_gpus=None)) == HOSTS


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("worker-1", "worker-1:0,1,2,3"),
        ("worker-1:0", "worker-1:0"),
        ("worker-0@worker-1:0,2", "worker-0:0,1,2,3 worker-1:0,2"),
        ("worker-1@worker-0", "worker-0:0,1,2,3 worker-1:0,1,2,3"),
        ("worker-2@worker-0:1,3", "worker-0:1,3 worker-2:0,1"),
        ("worker-0:0@worker-0:2", "worker-0:0,2"),
        ("worker-0:0,0,0", "worker-0:0"),
        ("worker-0@worker-0:0", "worker-0:0"),
        ("worker-0:0@worker-0", "worker-0:0"),
        ("worker-0: 0 , 2", "worker-0:0,2"),
        ("worker-0@worker-1@worker-2", "worker-0:0,1,2,3 worker-1:0,1,2,3 worker-2:0,1"),
    ],
)
def test_include_means_what_it_means_to_deepspeed(include: str, expected: str) -> None:
    assert outcome(HOSTS, Selection(include=include)) == expected


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("worker-1:3,1", "worker-1:3,1"),
        ("worker-1:3@worker-1:1", "worker-1:3,1"),
        ("worker-1:3,1,3", "worker-1:3,1"),
        ("worker-1:0-2", "worker-1:0,1,2"),
        ("worker-1:3,0-1", "worker-1:3,0,1"),
        ("worker-[0-1]", "worker-0:0,1,2,3 worker-1:0,1,2,3"),
        ("worker-[2,0]:0-1", "worker-0:0,1 worker-2:0,1"),
        (" worker-0 @ worker-1:2 ", "worker-0:0,1,2,3 worker-1:2"),
    ],
)
def test_include_keeps_slot_order_and_takes_ranges(include: str, expected: str) -> None:
    assert outcome(HOSTS, Selection(include=include)) == expected


@pytest.mark.parametrize(
    ("exclude", "expected"),
    [
        ("worker-1", "worker-0:0,1,2,3 worker-2:0,1"),
        ("worker-1:0", "worker-0:0,1,2,3 worker-1:1,2,3 worker-2:0,1"),
        ("worker-2:0@worker-1:3,1", "worker-0:0,1,2,3 worker-1:0,2 worker-2:1"),
        ("worker-2:0@worker-2:1", "worker-0:0,1,2,3 worker-1:0,1,2,3"),
        ("worker-2@worker-2:1", "worker-0:0,1,2,3 worker-1:0,1,2,3 worker-2:0"),
        ("worker-[0-1]@worker-2:1", "worker-2:0"),
        ("worker-[0-1]:1-3", "worker-0:0 worker-1:0 worker-2:0,1"),
    ],
)
def test_exclude(exclude: str, expected: str) -> None:
    assert outcome(HOSTS, Selection(exclude=exclude)) == expected


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("gpu:1", "gpu:1"),
        ("[::1]:0", "::1:0"),
        ("[::1]", "::1:0,1"),
        ("[0:0::1]:1@gpu:0", "gpu:0 ::1:1"),
        ("[fe80::2]@gpu", "gpu:0,1 fe80::2:0"),
    ],
)
def test_hosts_with_user_port_or_ipv6_are_named_by_their_name(include: str, expected: str) -> None:
    assert outcome(ADDRESSES, Selection(include=include)) == expected
    kept = select(ADDRESSES, Selection(include="gpu:1")).hosts[0]
    assert (kept.user, kept.port) == ("root", 2222)


@pytest.mark.parametrize(
    ("num_nodes", "num_gpus", "expected"),
    [
        (1, None, "worker-0:0,1,2,3"),
        (2, None, "worker-0:0,1,2,3 worker-1:0,1,2,3"),
        (3, 2, "worker-0:0,1 worker-1:0,1 worker-2:0,1"),
        (None, 1, "worker-0:0 worker-1:0 worker-2:0"),
        (2, 3, "worker-0:0,1,2 worker-1:0,1,2"),
        (-1, -1, "worker-0:0,1,2,3 worker-1:0,1,2,3 worker-2:0,1"),
        (0, 0, "worker-0:0,1,2,3 worker-1:0,1,2,3 worker-2:0,1"),
    ],
)
def test_numbers_take_the_first_of_hosts_and_slots(
    num_nodes: int | None, num_gpus: int | None, expected: str
) -> None:
    assert outcome(HOSTS, Selection(num_nodes=num_nodes, num_gpus=num_gpus)) == expected


def test_num_gpus_takes_the_first_slots_there_are_not_the_lowest_numbers() -> None:
    chosen = select(HOSTS, Selection(include="worker-1:3,1,2"))
    assert outcome(chosen, Selection(num_gpus=2)) == "worker-1:3,1"


def test_minus_one_beside_include_is_no_number() -> None:
    assert outcome(HOSTS, Selection(include="worker-2", num_nodes=-1, num_gpus=-1)) == "worker-2:0,1"


THERE_ARE = "there are 3 hosts: worker-0, worker-1, worker-2"
SLOTS = "slots read 0,2 or 0-3: numbers and low-high pairs with ',' between them"
NODE = "a host reads worker-1 or worker-1:0,2; IPv6 stands in brackets: [::1]:0"
NAME = "a host name holds letters, digits, '.', '-' and '_', and does not begin with '-' or '.'"


@pytest.mark.parametrize(
    ("selection", "what", "hint"),
    [
        (
            Selection(include="worker-0", exclude="worker-1"),
            "--include and --exclude exclude each other",
            "keep one: they say the same from two sides",
        ),
        (
            Selection(include="worker-0", num_nodes=1),
            "--num_nodes and --include exclude each other",
            "name the hosts and slots in --include alone",
        ),
        (
            Selection(exclude="worker-0", num_gpus=0),
            "--num_gpus and --exclude exclude each other",
            "name the hosts and slots in --exclude alone",
        ),
        (
            Selection(num_nodes=4),
            "--num_nodes=4 is above the 3 hosts there are",
            f"{THERE_ARE}; is it the hostfile you meant?",
        ),
        (
            Selection(num_gpus=3),
            "--num_gpus=3 is above the 2 slots of host 'worker-2'",
            "ask for fewer; or use --include, which can take another number from each host",
        ),
        (
            Selection(include="worker-10"),
            "--include: unknown host 'worker-10'",
            "did you mean worker-1 or worker-0 or worker-2?",
        ),
        (
            Selection(exclude="WORKER-1:0"),
            "--exclude: unknown host 'WORKER-1'",
            "did you mean worker-1 or worker-2 or worker-0?",
        ),
        (Selection(include="x"), "--include: unknown host 'x'", THERE_ARE),
        (Selection(include="worker-[1-3]"), "--include: unknown host 'worker-3'", None),
        (
            Selection(include="worker-1:4"),
            "--include: host 'worker-1' has no slot 4",
            "its slots are 0, 1, 2, 3",
        ),
        (
            Selection(exclude="worker-2:0-2"),
            "--exclude: host 'worker-2' has no slot 2",
            "its slots are 0, 1",
        ),
        (Selection(exclude="worker-[0-2]"), "--exclude leaves no slot on any host", THERE_ARE),
        (Selection(include="worker-1:"), "--include: expects a number or low-high, but got ''", SLOTS),
        (
            Selection(include="worker-1:0,"),
            "--include: expects a number or low-high, but got '' in '0,'",
            SLOTS,
        ),
        (Selection(include="worker-1:x"), "--include: expects a number or low-high, but got 'x'", SLOTS),
        (Selection(include="worker-1:-1"), "--include: expects a number or low-high, but got '-1'", SLOTS),
        (Selection(include="worker-1:2-0"), "--include: '2-0' counts down", SLOTS),
        (Selection(include="worker-1:0:1"), "--include: more than one ':' in 'worker-1:0:1'", NODE),
        (Selection(include="::1"), "--include: more than one ':' in '::1'", NODE),
        (Selection(include="worker-1@"), "--include: empty host name", NAME),
        (Selection(include="@worker-1"), "--include: empty host name", NAME),
        (Selection(include="worker-0@@worker-1"), "--include: empty host name", NAME),
        (Selection(include=":0"), "--include: empty host name", NAME),
        (
            Selection(include="worker-0,worker-1"),
            "--include: several hosts in 'worker-0,worker-1'",
            "between hosts stands '@': worker-0@worker-1:0,2",
        ),
        (Selection(include="worker-*"), "--include: host name 'worker-*' holds '*'", NAME),
    ],
)
def test_errors_say_what_there_is(selection: Selection, what: str, hint: str | None) -> None:
    with pytest.raises(FilterError) as refused:
        select(HOSTS, selection)
    assert str(refused.value) == what
    assert refused.value.what == what
    assert refused.value.hint
    if hint is not None:
        assert refused.value.hint == hint


def test_a_user_in_a_filter_is_explained() -> None:
    with pytest.raises(FilterError) as refused:
        select(ADDRESSES, Selection(include="root@gpu:0"))
    assert str(refused.value) == "--include: unknown host 'root'"
    assert refused.value.hint == (
        "name hosts without their user, as '@' stands between hosts; there are 3 hosts: gpu, ::1, fe80::2"
    )


def test_long_lists_are_shortened() -> None:
    many = parse_hostfile("n[0-99] slots=16", "hf")
    with pytest.raises(FilterError) as refused:
        select(many, Selection(include="zzz"))
    assert refused.value.hint == "there are 100 hosts: n0, n1, n2, n3, n4, n5, n6, n7 and 92 more"
