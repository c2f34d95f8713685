"""Making matrices orthogonal by Newton-Schulz iterations, the heart of Muon (Jordan et al., 2024).

Five steps of X <- aX + (bA + cA^2) X with A = X X^T drive all singular values of X into [0.7, 1.2], which is
as good as 1 for an update's direction. "gram" does the same on the small square A and multiplies X only
twice; it costs less where a matrix is far from square, and needs more digits, so it runs in fp16 where
"standard" runs in bf16. On CPUs, whose matrix units know neither, both run in fp32.
"""

from __future__ import annotations

from typing import Literal

import torch

Method = Literal["gram", "standard"]
METHODS: tuple[Method, ...] = ("gram", "standard")

_A, _B, _C = 3.4445, -4.7750, 2.0315
_EPS = 1e-7
_RESTART = 2  # after so many steps "gram" starts from a new A, before rounding has eaten it


def orthogonalized(matrix: torch.Tensor, num_steps: int, method: Method) -> torch.Tensor:
    """U V^T, nearly, of `matrix` [..., rows, columns] = U S V^T; its dtype, on GPUs fp16 or bf16."""
    tall = matrix.size(-2) > matrix.size(-1)
    x = matrix.mT if tall else matrix
    wide = torch.promote_types(x.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=wide)
    x = x / (norm + _EPS).to(x.dtype)
    gram = method == "gram" and x.size(-2) < x.size(-1)
    if x.is_cuda:
        x = x.to(torch.float16 if gram else torch.bfloat16)
    x = _gram(x, num_steps) if gram else _standard(x, num_steps)
    return x.mT if tall else x


def _standard(x: torch.Tensor, num_steps: int) -> torch.Tensor:
    for _ in range(num_steps):
        a = x @ x.mT
        x = _A * x + (_B * a + _C * a @ a) @ x
    return x


def _gram(x: torch.Tensor, num_steps: int) -> torch.Tensor:
    """X_n = Q X with Q the product of all steps' polynomials in A, which commute with A and one another."""
    for num in (min(num_steps, _RESTART), max(num_steps - _RESTART, 0)):
        a = x @ x.mT
        q = torch.eye(a.size(-1), dtype=a.dtype, device=a.device)
        for step in range(num):
            z = _B * a + _C * a @ a
            q = _A * q + z @ q
            if step < num - 1:
                az = _A * a + z @ a
                a = _A * az + z @ az
        x = q @ x
    return x
