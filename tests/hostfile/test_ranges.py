"""Node lists, short and long: Slurm's notation there and back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dslaunch.hostfile import TopologyError, expand_name_list, fold_names

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,12}", fullmatch=True)
clusters = st.lists(
    st.builds(
        lambda rack, node, width: f"r{rack}n{str(node).zfill(width)}.lan",
        st.integers(0, 3),
        st.integers(0, 120),
        st.sampled_from([0, 2, 3]),
    ),
    min_size=1,
    max_size=60,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu5", "gpu5"),
        ("a,b", "a b"),
        ("node[01-03,7]", "node01 node02 node03 node7"),
        (
            "node[01-03,7],gpu5,rack[1-2]n[0-1]",
            "node01 node02 node03 node7 gpu5 rack1n0 rack1n1 rack2n0 rack2n1",
        ),
        ("n[1,3]-ib,m[9-10].lan", "n1-ib n3-ib m9.lan m10.lan"),
        ("a , b[1-2]", "a b1 b2"),
    ],
)
def test_lists_expand(text: str, expected: str) -> None:
    assert " ".join(expand_name_list(text)) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a[1-2],b[x]", "expects a number or low-high, but got 'x'"),
        ("a[2-1]", "'2-1' counts down"),
        ("n[0-60000],m[0-60000]", "'n[0-60000],m[0-60000]' stands for more than 65536 hosts"),
    ],
)
def test_bad_lists_are_refused(text: str, what: str) -> None:
    with pytest.raises(TopologyError) as refused:
        expand_name_list(text)
    assert str(refused.value) == what
    assert (
        refused.value.hint == "a range reads worker-[0-3,7]: numbers and low-high pairs with ',' between them"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("login", "login"),
        ("worker-0", "worker-0"),
        ("worker-0 worker-1 worker-2 worker-3 worker-7", "worker-[0-3,7]"),
        ("worker-7 worker-10 worker-9 worker-8", "worker-[7-10]"),
        ("w3 w1 w3", "w[1,3]"),
        ("n08 n09 n10 n1", "n[1,08-10]"),
        ("n098 n099 n100", "n[098-100]"),
        ("r1n0 r1n1 r2n0 r2n1", "r[1-2]n[0-1]"),
        ("r1n0 r1n1 r2n0", "r1n[0-1],r2n0"),
        ("w0 gpu5 w1 gpu6 login", "w[0-1],gpu[5-6],login"),
        ("10.0.0.9 10.0.0.10", "10.0.0.[9-10]"),
        ("::1 ::2", "::1,::2"),
        ("n1234567890 n1234567891", "n1234567890,n1234567891"),
    ],
)
def test_names_fold(text: str, expected: str) -> None:
    assert fold_names(text.split()) == expected


@given(st.lists(names, min_size=1, max_size=20) | clusters)
@example(["n9", "n09", "n10", "n010", "n11"])
@example(["0", "00", "1", "01"])
@example(["r1n0", "r1n1", "r2n0", "r2n1", "r3n0"])
def test_a_folded_list_expands_to_the_same_names(hosts: list[str]) -> None:
    expanded = expand_name_list(fold_names(hosts))
    assert sorted(expanded) == sorted(set(hosts))


@given(st.integers(0, 9000), st.integers(1, 1000))
def test_a_whole_range_is_one_item(low: int, count: int) -> None:
    hosts = [f"worker-{i}" for i in range(low, low + count)]
    text = fold_names(reversed(hosts))
    assert text == (hosts[0] if count == 1 else f"worker-[{low}-{low + count - 1}]")
    assert list(expand_name_list(text)) == hosts
