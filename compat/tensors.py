"""Seeds, norms and memory, as `deepspeed.runtime.utils` has them."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch
import torch.distributed as dist

from dslaunch.compat.accelerator import get_accelerator
from dslaunch.engine.log import logger

_GIBIBYTE = 1 << 30


def set_random_seed(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators alike on every rank."""
    import numpy

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2,
    mpu: object = None,
) -> torch.Tensor:
    """torch's own: all ranks are data-parallel, so that every rank has the same gradients."""
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


def see_memory_usage(message: str, force: bool = False) -> None:
    """Log on rank 0, if `force`, the memory in use on the device and at most so far."""
    if not force or (dist.is_initialized() and dist.get_rank() != 0):
        return
    device = get_accelerator()
    now, peak = device.memory_allocated(), device.max_memory_allocated()
    logger.info("%s: %.2f GB in use, %.2f GB at most", message, now / _GIBIBYTE, peak / _GIBIBYTE)
    device.reset_peak_memory_stats()
