"""Who is measured with whom, and what is made of it."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.check.links import Pair, judge_pairs, pair_from_line, pairs_in_words
from dslaunch.launcher.check.pairwise import MARK, opponents
from dslaunch.launcher.check.show import line


@given(st.integers(1, 40), st.integers(1, 45))
def test_everybody_meets_one_other_a_round_and_all_where_there_is_time(
    num_ranks: int, max_rounds: int
) -> None:
    met = [opponents(rank, num_ranks, max_rounds) for rank in range(num_ranks)]
    pairs = []
    for number in range(len(met[0])):
        for rank in range(num_ranks):
            other = met[rank][number]
            assert other == -1 or (other != rank and met[other][number] == rank)
            if rank < other:
                pairs.append((rank, other))
    assert len(pairs) == len(set(pairs))
    assert len(met[0]) <= max_rounds
    if max_rounds >= num_ranks:
        assert set(pairs) == set(combinations(range(num_ranks), 2))


def pairs(num_hosts: int, *, slow_host: int = -1, slow_link: tuple[int, int] = (-1, -1)) -> list[Pair]:
    return [
        Pair(
            (f"w{a}", f"w{b}"),
            "nccl",
            1.0 if slow_host in (a, b) or slow_link == (a, b) else 10.0 + a / 9,
            "",
        )
        for a, b in combinations(range(num_hosts), 2)
    ]


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (pairs(2), []),
        (pairs(8), []),
        (pairs(3, slow_host=2), ["w2: all-reduces run at 1.00 Gb/s with it, at 10.00 in good pairs"]),
        (pairs(4, slow_host=2), ["w2: all-reduces run at 1.00 Gb/s with it, at "]),
        (
            pairs(4, slow_link=(1, 3)),
            ["w[1,3]: all-reduces run at 1.00 Gb/s between them, at "],
        ),
        (
            [*pairs(4)[1:], *(Pair(("w0", "w1"), "nccl", 0.0, why) for why in ("timed out", "was closed"))],
            ["w[0-1]: all-reduce over nccl between them failed: timed out"],
        ),
    ],
)
def test_the_slow_link_or_host_is_named(measured: list[Pair], said: list[str]) -> None:
    lines = [line(found).partition(": ")[2] for found in judge_pairs(measured)]
    assert len(lines) == len(said)
    assert all(one.startswith(words) for one, words in zip(lines, said, strict=True))


def test_what_ranks_print() -> None:
    told = {"ranks": [2, 1], "backend": "gloo", "num_bytes": 16 << 20, "seconds": 0.5}
    names = {1: "b", 2: "c"}
    pair = pair_from_line(MARK + json.dumps(told), names)
    assert pair == Pair(("b", "c"), "gloo", 8 * (16 << 20) / 0.5 / 1e9, "")
    assert pairs_in_words([pair]) == (
        "all-reduce over gloo, 1 pair: 0.27 Gb/s in the middle, slowest b and c at 0.27"
    )
    assert pair_from_line("step 1 loss 2.3", names) is None
    assert pairs_in_words([Pair(("b", "c"), "gloo", 0.0, "x")]) == ""
