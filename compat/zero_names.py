"""Enumerations and questions of `deepspeed.zero` that the engine itself has no use for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from enum import Enum, IntEnum
from typing import TypeVar

import torch

from dslaunch.engine.buckets import home_of
from dslaunch.engine.zero import GatheredParameters

Function = TypeVar("Function", bound=Callable[..., object])


class ZeroParamType(Enum):
    """Kinds of parameters: here all are shared out evenly."""

    NORMAL = 1
    PARTITIONED = 2
    REMOTE = 3


class ZeroStageEnum(IntEnum):
    """What is sharded."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


class OffloadDeviceEnum(str, Enum):
    """Where states can be put."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, Enum):
    """Which states can be put elsewhere."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


def is_zero_param(parameter: object) -> bool:
    """Whether it is a parameter that stage 3 looks after."""
    return isinstance(parameter, torch.Tensor) and hasattr(parameter, "ds_id")


def is_zero_supported_optimizer(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `initialize` takes it without zero_allow_untested_optimizer."""
    from dslaunch.engine.param_groups import is_tested

    return is_tested(optimizer)


def zero_wrapper_for_fp_tensor_constructor(function: Function, target_fp_dtype: torch.dtype) -> Function:
    """`function` itself: inside `zero.Init` the default dtype is set, and no constructor is replaced."""
    return function


@contextlib.contextmanager
def unwrap_model_for_generation(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The module with all its parameters gathered for the block. Collective at stage 3."""
    module = getattr(model, "module", model)
    with GatheredParameters([param for param in module.parameters() if home_of(param) is not None]):
        yield module
