"""Joining the job: the process group from the environment, and this rank's device."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from dslaunch.engine.batch import World
from dslaunch.engine.errors import EngineError

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: object = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Make sure that a torch process group exists; an existing one is adopted.

    The ranks come from RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Where none of them is set
    the process trains alone in a group of one. EngineError names the variables that are missing when only
    some are set. `auto_mpi_discovery`, `distributed_port`, `verbose` and `config` are DeepSpeed's and have
    no effect here. DEEPSPEED_TIMEOUT (minutes) is the timeout of collectives where `timeout` is not given.
    """
    if dist.is_initialized():
        return
    if dist_init_required is False:
        raise EngineError(
            "dist_init_required is false, but torch.distributed is not initialized",
            "call torch.distributed.init_process_group first, or leave dist_init_required out",
        )
    backend = dist_backend or ("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    atexit.register(_leave)
    limit = timeout if timeout is not None else _timeout_of(os.environ)
    if init_method is not None and rank >= 0 and world_size > 0:
        dist.init_process_group(
            backend, init_method=init_method, rank=rank, world_size=world_size, timeout=limit
        )
        return
    missing = missing_variables(os.environ)
    if len(missing) == len(RANK_VARIABLES):
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=limit)
        return
    if missing:
        raise EngineError(
            f"cannot join the job: {', '.join(missing)} not set in the environment "
            f"({', '.join(name for name in RANK_VARIABLES if name not in missing)} set)",
            "start the script with dslaunch, which sets all five; unset them all to train in one process",
        )
    if torch.cuda.is_available():
        torch.cuda.set_device(_gpu(int(os.environ["LOCAL_RANK"])))
    dist.init_process_group(backend, init_method=init_method or "env://", timeout=limit)


def missing_variables(environ: Mapping[str, str]) -> list[str]:
    """Those of the five variables that are absent or empty."""
    return [name for name in RANK_VARIABLES if not environ.get(name)]


def current_world() -> World:
    """This rank's place among the data-parallel ranks, which are all ranks of the process group."""
    if not dist.is_initialized():
        return World(1, 0, 0, "a single process")
    size, rank = dist.get_world_size(), dist.get_rank()
    if os.environ.get("WORLD_SIZE") == str(size):
        source = "WORLD_SIZE"
    elif size == 1:
        source = "a single process"
    else:
        source = "the torch process group"
    return World(size, rank, int(os.environ.get("LOCAL_RANK") or 0), source)


def use_device(world: World) -> torch.device:
    """The device this rank trains on, made the current one: a GPU where there is CUDA, else the CPU.

    That is GPU LOCAL_RANK, or whichever the script has chosen where no launcher has set LOCAL_RANK.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    named = bool(os.environ.get("LOCAL_RANK"))
    device = _gpu(world.local_rank if named else torch.cuda.current_device())
    torch.cuda.set_device(device)
    return device


def _gpu(local_rank: int) -> torch.device:
    num_devices = torch.cuda.device_count()
    if local_rank >= num_devices:
        raise EngineError(
            f"LOCAL_RANK {local_rank} has no GPU: {num_devices} visible",
            "check --num_gpus and CUDA_VISIBLE_DEVICES on this node",
        )
    return torch.device("cuda", local_rank)


def _leave() -> None:
    """End the group before the interpreter does: gloo's threads could abort a process that is done."""
    failed = getattr(sys, "last_type", None) is not None  # an exception nobody caught: its peers may be gone
    if dist.is_initialized() and not (failed and torch.cuda.is_available()):
        dist.destroy_process_group()


def _timeout_of(environ: Mapping[str, str]) -> timedelta | None:
    minutes = environ.get("DEEPSPEED_TIMEOUT")
    return timedelta(minutes=int(minutes)) if minutes else None
