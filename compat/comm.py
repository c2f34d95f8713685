"""`deepspeed.comm`: the engine's, and what else of torch.distributed scripts take from it."""

from __future__ import annotations

import torch
from torch.distributed import (
    P2POp,
    ProcessGroup,
    batch_isend_irecv,
    get_global_rank,
    reduce_scatter,
)
from torch.distributed import get_process_group_ranks as get_all_ranks_from_group
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dslaunch.compat.accelerator import get_accelerator
from dslaunch.engine import comm
from dslaunch.engine.comm import *  # noqa: F403 - the same names

__all__ = [
    *comm.__all__,
    "P2POp",
    "ProcessGroup",
    "all_gather_coalesced",
    "all_reduce_coalesced",
    "batch_isend_irecv",
    "configure",
    "get_all_ranks_from_group",
    "get_global_rank",
    "has_all_gather_into_tensor",
    "has_all_reduce_coalesced",
    "has_coalescing_manager",
    "has_reduce_scatter_tensor",
    "inference_all_reduce",
    "initialize_mesh_device",
    "reduce_scatter",
]

TORCH_DISTRIBUTED_DEFAULT_PORT = 29500
NCCL_BACKEND, GLOO_BACKEND, MPI_BACKEND, CCL_BACKEND = "nccl", "gloo", "mpi", "ccl"

inference_all_reduce = comm.all_reduce


def configure(*_: object, **__: object) -> None:
    """Nothing: the section comms_logger of the config says what is logged."""


def has_all_gather_into_tensor() -> bool:
    """Always."""
    return True


has_reduce_scatter_tensor = has_all_gather_into_tensor
has_all_reduce_coalesced = has_coalescing_manager = has_all_gather_into_tensor


def all_gather_coalesced(
    output_tensors: list[torch.Tensor],
    input_tensors: list[torch.Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> None:
    """`all_gather_into_tensor` of each pair."""
    for output, tensor in zip(output_tensors, input_tensors, strict=True):
        comm.all_gather_into_tensor(output, tensor, group=group)


def all_reduce_coalesced(
    tensors: list[torch.Tensor],
    op: comm.ReduceOp.RedOpType = comm.ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> None:
    """`all_reduce` of each."""
    for tensor in tensors:
        comm.all_reduce(tensor, op=op, group=group)


def initialize_mesh_device(mesh_shape: tuple[int, ...], mesh_dim_names: tuple[str, ...]) -> DeviceMesh:
    """torch's device mesh over the ranks."""
    return init_device_mesh(get_accelerator().device_name(), mesh_shape, mesh_dim_names=mesh_dim_names)
