"""The sum of squares: against fp64, and as a test of whether all gradients are finite."""

from __future__ import annotations

import pytest
import torch
from rule_cases import GRADS

from dslaunch.engine.ops.norm import sum_of_squares


@pytest.mark.parametrize("dtype", GRADS)
def test_equals_fp64(dtype: torch.dtype, device: torch.device, seed: int) -> None:
    torch.manual_seed(seed)
    for offset in (0, 1):
        grads = [torch.randn(n + offset).to(device, dtype)[offset:] for n in (0, 1, 17, 1023, 100_003)]
        exact = sum(grad.double().square().sum() for grad in grads)
        total = sum_of_squares(grads)
        assert total.dtype == torch.float64
        torch.testing.assert_close(total, exact, rtol=1e-6, atol=0)
        torch.testing.assert_close(
            sum_of_squares(grads[-1:]), grads[-1].double().square().sum(), rtol=1e-6, atol=0
        )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_element_shows(bad: float, device: torch.device) -> None:
    for dtype in GRADS:
        for numel in (1, 5, 4096, 50_001):
            for index in {0, numel // 2, numel - 1}:
                grad = torch.ones(numel, device=device, dtype=dtype)
                grad[index] = bad
                assert not sum_of_squares([grad]).isfinite()


def test_large_finite_gradients_are_finite(device: torch.device) -> None:
    for numel in (3, 5000):
        grad = torch.full((numel,), 3e38, device=device)
        torch.testing.assert_close(sum_of_squares([grad]).item(), numel * 3e38**2, rtol=1e-6, atol=0)


def test_the_number_of_threads_changes_no_bit() -> None:
    grad = torch.randn(1_000_003)
    num_threads = torch.get_num_threads()
    try:
        sums = set()
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            sums.add(sum_of_squares([grad]).item())
    finally:
        torch.set_num_threads(num_threads)
    assert len(sums) == 1


def test_of_nothing() -> None:
    assert sum_of_squares([]) == 0
    assert sum_of_squares([torch.zeros(0)]) == 0
