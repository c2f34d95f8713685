"""Activation checkpointing: what runs inside `checkpoint` keeps its inputs only and runs again in backward.

It is torch.utils.checkpoint, under the names and options of `deepspeed.checkpointing`. Random states,
those of the tracker included, are in the second run what they were in the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from dslaunch.engine import log
from dslaunch.engine.config import load_config
from dslaunch.engine.config_observe import ActivationCheckpointingConfig
from dslaunch.engine.config_source import ConfigInput
from dslaunch.engine.errors import EngineError
from dslaunch.engine.rng_tracker import get_cuda_rng_tracker, model_parallel_cuda_manual_seed

__all__ = [
    "checkpoint",
    "configure",
    "get_cuda_rng_tracker",
    "is_configured",
    "model_parallel_cuda_manual_seed",
    "reset",
]

_configured: ActivationCheckpointingConfig | None = None


def configure(
    mpu_: object = None,
    deepspeed_config: ConfigInput | None = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Set how `checkpoint` works from now on; what is None comes from `deepspeed_config`, or is off.

    `initialize` calls it for a config with the section activation_checkpointing.
    """
    found = ActivationCheckpointingConfig()
    if deepspeed_config is not None:
        found = load_config(deepspeed_config).activation_checkpointing
    if checkpoint_in_cpu is not None:
        found = replace(found, cpu_checkpointing=checkpoint_in_cpu)
    if profile is not None:
        found = replace(found, profile=profile)
    idle = {
        "mpu_": mpu_ is not None,
        "partition_activations": partition_activations,
        "contiguous_checkpointing": contiguous_checkpointing,
        "num_checkpoints": num_checkpoints,
        "synchronize": synchronize,
    }
    named = [name for name, value in idle.items() if value]
    if named:
        log.say(_rank(), f"checkpointing.configure: no effect here: {', '.join(named)}")
    adopt(found)


def adopt(config: ActivationCheckpointingConfig) -> None:
    """Set how `checkpoint` works from now on."""
    global _configured
    _configured = config


def is_configured() -> bool:
    """Whether `configure` was called."""
    return _configured is not None


def reset() -> None:
    """Nothing is kept between iterations; there for scripts that call it after each."""


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, its activations recomputed in backward."""
    config = _configured or ActivationCheckpointingConfig()
    run = _replayable(function, config.profile)
    if not config.cpu_checkpointing:
        return torch_checkpoint(run, *args, use_reentrant=False)
    if not any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        raise EngineError(
            "cpu_checkpointing: no input of the checkpointed function requires a gradient",
            "call requires_grad_() on an input, or checkpoint from the second layer on",
        )
    # Only the reentrant kind keeps its inputs as saved tensors, which can be packed away.
    with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
        return torch_checkpoint(run, *args, use_reentrant=True)


def _replayable(function: Callable[..., Any], profile: bool) -> Callable[..., Any]:
    """`function`; from its second call on with the tracker's random states as at the first."""
    tracker = get_cuda_rng_tracker()
    first: dict[str, torch.Tensor] | None = None

    def run(*args: Any) -> Any:
        nonlocal first
        again, now = first is not None, tracker.get_states()
        if first is None:
            first = now
        else:
            tracker.set_states(first)
        started_s = _now() if profile else 0.0
        try:
            return function(*args)
        finally:
            if again:
                tracker.set_states(now)
            if profile:
                what = "recomputed" if again else "ran"
                log.say(_rank(), f"checkpointed function {what} in {(_now() - started_s) * 1e3:.2f} ms")

    return run


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
