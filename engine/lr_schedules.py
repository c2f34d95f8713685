"""DeepSpeed's learning-rate schedules: WarmupLR, WarmupDecayLR, WarmupCosineLR.

The engine calls `step()` after every applied optimizer step. The rates are set at construction for
iteration 0 and the first `step()` sets those of iteration 0 again, so the first two optimizer steps run at
the lowest rate. Source: DeepSpeed's "Learning Rate Schedulers" page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch

from dslaunch.engine.config import SchedulerConfig
from dslaunch.engine.config_keys import Kind
from dslaunch.engine.config_read import as_kind, auto_value, unknown_key
from dslaunch.engine.errors import ConfigError


class LrScheduler(Protocol):
    """What the engine asks of a scheduler, its own or the script's."""

    def step(self) -> None: ...

    def state_dict(self) -> dict[str, object]: ...

    def load_state_dict(self, state_dict: dict[str, object]) -> None: ...


class WarmupLR:
    """From `warmup_min_lr` to `warmup_max_lr` in `warmup_num_steps` steps, then constant.

    log: min + (max - min) * log(i + 1) / log(n);  linear: min + (max - min) * i / n.
    `warmup_max_lr` None takes each group's own rate at construction.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        warmup_min_lr: float = 0.0,
        warmup_max_lr: float | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        if warmup_num_steps < 1:
            raise ConfigError(
                f"scheduler.params.warmup_num_steps: expects a positive integer but got {warmup_num_steps}",
                "write the number of warm-up steps",
            )
        if warmup_type not in ("log", "linear"):
            raise ConfigError(
                f"scheduler.params.warmup_type: expects log or linear but got {warmup_type!r}", "write linear"
            )
        self.optimizer = optimizer
        self.max_lrs = [
            float(group["lr"] if warmup_max_lr is None else warmup_max_lr) for group in optimizer.param_groups
        ]
        self.min_lrs = [float(warmup_min_lr)] * len(self.max_lrs)
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.warmup_type = warmup_type
        self.last_batch_iteration = last_batch_iteration
        self._last_lr: list[float] | None = None
        if last_batch_iteration == -1:
            self._set(self.get_lr())

    def get_lr(self) -> list[float]:
        """The rate of each group at the current iteration; iteration -1 is before the first step."""
        if self.last_batch_iteration < 0:
            return list(self.min_lrs)
        gamma = self._gamma(self.last_batch_iteration)
        return [low + (high - low) * gamma for low, high in zip(self.min_lrs, self.max_lrs, strict=True)]

    def get_last_lr(self) -> list[float]:
        """The rates the last `step()` set; AssertionError before the first one."""
        assert self._last_lr is not None, "need to call step() first"
        return self._last_lr

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Go to the next iteration, or to the one named, and set the groups' rates."""
        if last_batch_iteration is None:
            last_batch_iteration = self.last_batch_iteration + 1
        self.last_batch_iteration = last_batch_iteration
        self._last_lr = self.get_lr()
        self._set(self._last_lr)

    def state_dict(self) -> dict[str, object]:
        """The iteration; everything else is configuration."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Take up the iteration of `state_dict`; the optimizer's groups carry their rates themselves."""
        iteration = state_dict["last_batch_iteration"]
        assert isinstance(iteration, int)
        self.last_batch_iteration = iteration

    def _set(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _warmup(self, iteration: int) -> float:
        if self.warmup_type == "log":
            return math.log(iteration + 1) / math.log(self.warmup_num_steps)
        return iteration / self.warmup_num_steps

    def _gamma(self, iteration: int) -> float:
        return self._warmup(iteration) if iteration < self.warmup_num_steps else 1.0


class WarmupDecayLR(WarmupLR):
    """WarmupLR, then a straight line to `warmup_min_lr` (0 as a rule) at `total_num_steps`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        total_num_steps: int,
        warmup_min_lr: float = 0.0,
        warmup_max_lr: float | None = 0.001,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        self.total_num_steps = total_num_steps
        super().__init__(
            optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration
        )

    def _gamma(self, iteration: int) -> float:
        if iteration < self.warmup_num_steps:
            return self._warmup(iteration)
        left = self.total_num_steps - iteration
        return max(0.0, left / max(1.0, float(self.total_num_steps - self.warmup_num_steps)))


class WarmupCosineLR(WarmupLR):
    """Scales each group's rate: from `warmup_min_ratio` up to 1, then half a cosine to `cos_min_ratio`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        total_num_steps: int,
        warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000,
        cos_min_ratio: float = 0.0001,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        self.total_num_steps = total_num_steps
        self.warmup_min_ratio = warmup_min_ratio
        self.cos_min_ratio = cos_min_ratio
        super().__init__(optimizer, 0.0, None, warmup_num_steps, warmup_type, last_batch_iteration)

    def get_lr(self) -> list[float]:
        """The rate of each group at the current iteration."""
        ratio = 0.0 if self.last_batch_iteration < 0 else self._ratio(self.last_batch_iteration)
        return [ratio * high for high in self.max_lrs]

    def _ratio(self, iteration: int) -> float:
        if iteration < self.warmup_num_steps:
            return self.warmup_min_ratio + (1.0 - self.warmup_min_ratio) * self._warmup(iteration)
        done = iteration - self.warmup_num_steps + 1
        length = self.total_num_steps - self.warmup_num_steps
        cosine = (1.0 + math.cos(math.pi * done / max(1, length))) / 2.0
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * cosine)


_PARAMS: Mapping[str, Kind] = {
    "warmup_min_lr": "number",
    "warmup_max_lr": "number",
    "warmup_num_steps": "int",
    "warmup_type": "text",
    "total_num_steps": "int",
    "warmup_min_ratio": "number",
    "cos_min_ratio": "number",
    "last_batch_iteration": "int",
}
_SCHEDULES: Mapping[str, tuple[type[WarmupLR], frozenset[str]]] = {
    "WarmupLR": (
        WarmupLR,
        frozenset(
            {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration"}
        ),
    ),
    "WarmupDecayLR": (
        WarmupDecayLR,
        frozenset(_PARAMS) - {"warmup_min_ratio", "cos_min_ratio"},
    ),
    "WarmupCosineLR": (WarmupCosineLR, frozenset(_PARAMS) - {"warmup_min_lr", "warmup_max_lr"}),
}


def build_scheduler(config: SchedulerConfig, optimizer: torch.optim.Optimizer) -> WarmupLR:
    """The schedule named by `config`; ConfigError if it is not one of ours or its parameters are wrong."""
    if config.type not in _SCHEDULES:
        raise ConfigError(
            f"scheduler.type: {config.type} is not supported yet",
            f"use {', '.join(_SCHEDULES)}, or pass a torch scheduler as lr_scheduler= to initialize",
        )
    schedule, known = _SCHEDULES[config.type]
    params: dict[str, object] = {}
    for key, value in config.params.items():
        path = f"scheduler.params.{key}"
        if key not in known:
            raise unknown_key("scheduler.params.", key, known)
        if value == "auto":
            raise auto_value(path)
        if value is not None:
            params[key] = as_kind(path, value, _PARAMS[key])
    if "total_num_steps" in known and "total_num_steps" not in params:
        raise ConfigError(
            f"scheduler.params.total_num_steps is missing: {config.type} needs it",
            "write the number of optimizer steps of the whole run",
        )
    return schedule(optimizer, **params)  # type: ignore[arg-type]
