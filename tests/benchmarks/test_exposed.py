"""Which share of a time line only communication covers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts/benchmarks/payload"))
from exposed import share_alone  # type: ignore[import-not-found,unused-ignore]


@pytest.mark.parametrize(
    ("ours", "others", "expected"),
    [
        ([(0, 4)], [(2, 10)], 0.2),
        ([(2, 4)], [(0, 10)], 0.0),  # hidden
        ([(8, 10)], [(0, 5)], 0.2),  # nothing runs from 5 to 8
        ([(0, 3), (2, 5)], [(5, 10)], 0.5),  # overlapping each other
        ([], [(0, 10)], 0.0),
        ([(0, 10)], [], 1.0),
        ([], [], 0.0),
    ],
)
def test_share_alone(
    ours: list[tuple[float, float]], others: list[tuple[float, float]], expected: float
) -> None:
    assert share_alone(ours, others) == pytest.approx(expected)
