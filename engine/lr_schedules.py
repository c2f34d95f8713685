"""The learning-rate schedules a config can name: DeepSpeed's five, and those of torch.optim.lr_scheduler."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

from dslaunch.engine.config import SchedulerConfig
from dslaunch.engine.config_scheduler import (
    LR_RANGE_TEST,
    ONE_CYCLE,
    VALID_LR_SCHEDULES,
    WARMUP_COSINE_LR,
    WARMUP_DECAY_LR,
    WARMUP_LR,
    SchedulerSpec,
    scheduler_spec,
)
from dslaunch.engine.config_unknown import unknown_key
from dslaunch.engine.errors import ConfigError
from dslaunch.engine.lr_cycle import LRRangeTest, OneCycle
from dslaunch.engine.lr_schedule import LrScheduler, Schedule
from dslaunch.engine.lr_warmup import WarmupCosineLR, WarmupDecayLR, WarmupLR

__all__ = [
    "VALID_LR_SCHEDULES",
    "LRRangeTest",
    "LrScheduler",
    "OneCycle",
    "WarmupCosineLR",
    "WarmupDecayLR",
    "WarmupLR",
    "build_scheduler",
]

_SCHEDULES: dict[str, Callable[..., Schedule]] = {
    LR_RANGE_TEST: LRRangeTest,
    ONE_CYCLE: OneCycle,
    WARMUP_LR: WarmupLR,
    WARMUP_DECAY_LR: WarmupDecayLR,
    WARMUP_COSINE_LR: WarmupCosineLR,
}


def build_scheduler(config: SchedulerConfig, optimizer: torch.optim.Optimizer) -> LrScheduler:
    """The schedule named by `config`; ConfigError if its name or parameters are wrong."""
    spec = scheduler_spec(config)
    if spec.name in _SCHEDULES:
        return _SCHEDULES[spec.name](optimizer, **spec.params)
    return _torch_scheduler(spec, optimizer)


def _torch_scheduler(spec: SchedulerSpec, optimizer: torch.optim.Optimizer) -> LrScheduler:
    build = getattr(torch.optim.lr_scheduler, spec.name)
    known = [name for name in inspect.signature(build).parameters if name not in ("self", "optimizer")]
    for key in spec.params:
        if key not in known:
            raise unknown_key("scheduler.params.", key, known)
    try:
        scheduler: LrScheduler = build(optimizer, **spec.params)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"scheduler.params: torch's {spec.name} refuses them: {error}",
            f"see torch.optim.lr_scheduler.{spec.name}",
            "scheduler.params",
        ) from None
    return scheduler
