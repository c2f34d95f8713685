"""`deepspeed.utils.groups`: which ranks share what. All ranks are data-parallel, and nothing else."""

from __future__ import annotations

import torch.distributed as dist


def get_data_parallel_group() -> dist.ProcessGroup | None:
    """The group of all ranks."""
    return dist.group.WORLD


def get_data_parallel_world_size() -> int:
    """The number of all ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def get_data_parallel_rank() -> int:
    """This rank's place among all."""
    return dist.get_rank() if dist.is_initialized() else 0


def get_model_parallel_group() -> None:
    """There is none."""


def get_model_parallel_world_size() -> int:
    """A model is on one rank."""
    return 1


def get_model_parallel_rank() -> int:
    """The first and only."""
    return 0
