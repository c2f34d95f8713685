"""`torch.distributed` under the names of `deepspeed.comm`: `from dslaunch.engine import comm as dist`."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed import (
    ReduceOp,
    all_gather,
    all_gather_object,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    broadcast_object_list,
    destroy_process_group,
    gather,
    get_backend,
    get_rank,
    get_world_size,
    irecv,
    is_available,
    is_initialized,
    isend,
    monitored_barrier,
    new_group,
    recv,
    reduce,
    scatter,
    send,
)

from dslaunch.engine import collectives, comms_log
from dslaunch.engine.distributed import init_distributed

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "gather",
    "get_backend",
    "get_local_rank",
    "get_rank",
    "get_world_group",
    "get_world_size",
    "init_distributed",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "log_summary",
    "monitored_barrier",
    "new_group",
    "recv",
    "reduce",
    "reduce_scatter_tensor",
    "scatter",
    "send",
]


def get_local_rank() -> int:
    """This rank's place on its node, from LOCAL_RANK."""
    return int(os.environ.get("LOCAL_RANK") or 0)


def get_world_group() -> dist.ProcessGroup | None:
    """The group of all ranks."""
    return dist.group.WORLD


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Fill `output_tensor` [W * S] with every rank's `tensor` [S]."""
    return collectives.all_gather_flat(output_tensor, tensor, group=group, async_op=async_op)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - torch's own name
    op: ReduceOp.RedOpType = ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Reduce every rank's `input` [W * S]; `output` [S] is this rank's part."""
    return collectives.reduce_scatter_flat(output, input, op=op, group=group, async_op=async_op)


def log_summary(*_: object, **__: object) -> None:
    """Say on rank 0 what `comms_logger` has counted; nothing where the config has it off."""
    comms_log.log_summary()
