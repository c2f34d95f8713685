"""Cores for ranks: DeepSpeed's list, fake topologies, shares on any machine, a real child."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslaunch.launcher.agent.binding import (
    assign,
    bind,
    binding_environment,
    numa_nodes,
    parse_core_list,
    physical_cores,
    plan_binding,
)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0", (0,)),
        ("0,2-4,6,8-9", (0, 2, 3, 4, 6, 8, 9)),
        ("7-7", (7,)),
        ("00,01", (0, 1)),
        ("65535", (65535,)),
    ],
)
def test_core_lists(text: str, cores: tuple[int, ...]) -> None:
    assert parse_core_list(text) == cores


ORDER = "sub ranges must not overlap with each other and should be in ascend order"
SHAPE = "range must be either a number or two number separated by dash"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", f"Bad range: '', {SHAPE}"),
        ("1,", f"Bad range: '', {SHAPE}"),
        ("0-2-4", f"Bad range: '0-2-4', {SHAPE}"),
        ("a", f"Bad range: 'a', {SHAPE}"),
        ("0, 2", f"Bad range: ' 2', {SHAPE}"),
        ("-1", f"Bad range: '-1', {SHAPE}"),
        ("\u0661", f"Bad range: '\u0661', {SHAPE}"),
        ("4-2", "Bad range: '4-2', range end must larger than or equal to start"),
        ("0-3,2", f"Bad range: '0-3,2', {ORDER}"),
        ("3,1", f"Bad range: '3,1', {ORDER}"),
        ("1,1", f"Bad range: '1,1', {ORDER}"),
        ("0-65536", "Bad range: '0-65536', there is no core above 65535"),
        ("0-9999999999", "Bad range: '0-9999999999', there is no core above 65535"),
    ],
)
def test_bad_core_lists(text: str, error: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        parse_core_list(text)
    assert str(refused.value) == error


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_list_of_single_cores_reads_back(cores: set[int]) -> None:
    assert parse_core_list(",".join(map(str, sorted(cores)))) == tuple(sorted(cores))


def topology(
    root: Path, siblings: dict[int, str], nodes: dict[int, str], file: str = "core_cpus_list"
) -> str:
    """A fake /sys: for each CPU the list of its core's CPUs, for each NUMA node its CPUs."""
    for cpu, cpus in siblings.items():
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / file).write_text(f"{cpus}\n")
    for node, cpus in nodes.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    return str(root)


SMT = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}


@pytest.mark.parametrize("file", ["core_cpus_list", "thread_siblings_list"])
@pytest.mark.parametrize(
    ("allowed", "cores"),
    [
        (range(8), (0, 1, 2, 3)),
        ({0, 4}, (0,)),
        ({4, 5, 6}, (4, 5, 6)),
        ({1, 2, 5, 7}, (1, 2, 7)),
    ],
)
def test_one_cpu_stands_for_a_physical_core(
    tmp_path: Path, file: str, allowed: range | set[int], cores: tuple[int, ...]
) -> None:
    assert physical_cores(frozenset(allowed), topology(tmp_path, SMT, {}, file)) == cores


def test_without_topology_every_cpu_is_a_core(tmp_path: Path) -> None:
    assert physical_cores(frozenset({3, 1}), str(tmp_path)) == (1, 3)
    assert numa_nodes(str(tmp_path)) == {}


def test_memory_without_cores_is_no_node(tmp_path: Path) -> None:
    root = topology(tmp_path, {}, {0: "0-3", 1: "4-7", 2: "", 10: "8"})
    (tmp_path / "sys/devices/system/node/possible").write_text("0-10")
    assert numa_nodes(root) == {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}, 10: {8}}


TWO = {0: frozenset(range(8)), 1: frozenset(range(8, 16))}
INTERLEAVED = {0: frozenset(range(0, 8, 2)), 1: frozenset(range(1, 8, 2))}


@pytest.mark.parametrize(
    ("cores", "numa", "num_ranks", "expected"),
    [
        (range(4), {}, 1, "0-3"),
        (range(4), {}, 2, "0-1 2-3"),
        (range(5), {}, 2, "0-1 2-3"),
        (range(16), TWO, 2, "0-7 8-15"),
        (range(16), TWO, 4, "0-3 4-7 8-11 12-15"),
        (range(16), TWO, 3, "0-4 8-12 5-7,13-14"),
        (range(16), TWO, 1, "0-15"),
        (range(6, 14), TWO, 2, "8-11 6-7,12-13"),
        (range(8), INTERLEAVED, 2, "0,2,4,6 1,3,5,7"),
        (range(8), INTERLEAVED, 4, "0,2 4,6 1,3 5,7"),
        ((0, 9), TWO, 2, "0 9"),
    ],
)
def test_shares_stay_within_a_numa_node(
    cores: range, numa: dict[int, frozenset[int]], num_ranks: int, expected: str
) -> None:
    assert assign(cores, numa, num_ranks) == tuple(parse_core_list(part) for part in expected.split())


@pytest.mark.parametrize(("num_cores", "error"), [(1, "1 core for 2 ranks"), (0, "0 cores for 2 ranks")])
def test_fewer_cores_than_ranks(num_cores: int, error: str) -> None:
    with pytest.raises(ValueError, match=f"^{error}: at least one core needs to be assigned to each rank$"):
        assign(range(num_cores), {}, 2)


@settings(deadline=None)
@given(st.sets(st.integers(0, 63), min_size=1), st.integers(1, 8), st.integers(1, 64))
def test_shares_are_equal_disjoint_and_as_large_as_can_be(
    cores: set[int], node_size: int, num_ranks: int
) -> None:
    numa = {i: frozenset(range(i * node_size, (i + 1) * node_size)) for i in range(64 // node_size)}
    if len(cores) < num_ranks:
        with pytest.raises(ValueError, match="at least one core"):
            assign(sorted(cores), numa, num_ranks)
        return
    shares = assign(sorted(cores), numa, num_ranks)
    assert [len(share) for share in shares] == [len(cores) // num_ranks] * num_ranks
    used = [core for share in shares for core in share]
    assert len(used) == len(set(used))
    assert set(used) <= cores


def test_a_list_is_checked_against_what_this_process_may_use() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert plan_binding(str(allowed[-1]), 1) == ((allowed[-1],),)
    with pytest.raises(ValueError, match=r"^core 65535 of '65535' is not among those this process may use: "):
        plan_binding("65535", 1)


def test_without_a_list_the_physical_cores_of_this_process_are_shared(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert plan_binding("", 1, str(tmp_path)) == (tuple(allowed),)


def test_a_bound_child_runs_on_its_cores_alone() -> None:
    core = max(os.sched_getaffinity(0))
    code = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **binding_environment((core,))},
        preexec_fn=partial(bind, (core,)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout == f"[{core}] 1\n"
