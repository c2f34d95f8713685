"""Orthogonal matrices by Newton-Schulz iterations."""

from __future__ import annotations

import pytest
import torch

from dslaunch.engine.ops.muon import METHODS, Method, orthogonalized


@pytest.mark.parametrize("shape", [(16, 48), (48, 16), (24, 24), (3, 8, 20)])
@pytest.mark.parametrize("method", METHODS)
def test_singular_values_become_one(shape: tuple[int, ...], method: Method) -> None:
    torch.manual_seed(1)
    matrix = torch.randn(shape)
    found = orthogonalized(matrix, 5, method)
    assert found.shape == matrix.shape
    values = torch.linalg.svdvals(found)
    assert 0.6 < values.min().item() <= values.max().item() < 1.3
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    cosine = torch.nn.functional.cosine_similarity(found.flatten(), (u @ vh).flatten(), dim=0)
    assert cosine.item() > 0.98


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5, 7])
def test_both_methods_are_the_same_polynomial(num_steps: int) -> None:
    matrix = torch.randn(10, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = [orthogonalized(matrix, num_steps, method) for method in METHODS]
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


def test_a_zero_matrix_stays_zero() -> None:
    assert not orthogonalized(torch.zeros(4, 6), 5, "gram").any()
