"""Norms of gradients: one pass that reads each once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dslaunch.engine.ops import backends


def sum_of_squares(grads: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of squares of all elements of all `grads`: an fp64 scalar on their device.

    They are fp32, bf16 or fp16, of one dtype, and contiguous. It is not finite exactly if one of their
    elements is not, and does not depend on the number of threads. On GPUs it is not read by the host.
    """
    if torch.compiler.is_compiling():
        from dslaunch.engine.ops import compiled

        total: torch.Tensor = compiled.sum_of_squares(grads)
        return total
    if not grads:
        return torch.zeros((), dtype=torch.float64)
    if (backend := backends.of(grads[0].device)) is not None:
        return backend.sum_of_squares(grads)
    return torch.stack([grad.double().square().sum() for grad in grads]).sum()
