"""DeepSpeed's warm-ups: WarmupLR, WarmupDecayLR, WarmupCosineLR."""

from __future__ import annotations

import math

import torch

from dslaunch.engine.errors import ConfigError
from dslaunch.engine.log import logger
from dslaunch.engine.lr_schedule import Schedule


class WarmupLR(Schedule):
    """From `warmup_min_lr` to `warmup_max_lr` in `warmup_num_steps` steps, then constant.

    log: min + (max - min) * log(i + 1) / log(n);  linear: min + (max - min) * i / n.
    `warmup_max_lr` None takes each group's own rate at construction. Fewer than 2 steps are 2: 0 is what
    the Trainer writes for "auto" unless it is told of a warm-up.
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
        if not isinstance(warmup_num_steps, int) or warmup_num_steps < 0:
            raise ConfigError(
                f"scheduler.params.warmup_num_steps: expects at least 0 but got {warmup_num_steps}",
                "write the number of warm-up steps",
            )
        if warmup_type not in ("log", "linear"):
            logger.warning(
                "warmup_type %r is neither log nor linear: log is taken, as in DeepSpeed", warmup_type
            )
            warmup_type = "log"
        super().__init__(optimizer, last_batch_iteration)
        self.max_lrs = [
            float(group["lr"] if warmup_max_lr is None else warmup_max_lr) for group in optimizer.param_groups
        ]
        self.min_lrs = [float(warmup_min_lr)] * len(self.max_lrs)
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.warmup_type = warmup_type
        if last_batch_iteration == -1:
            self._set(self.get_lr())

    def get_lr(self) -> list[float]:
        """The rate of each group at the current iteration; iteration -1 is before the first step."""
        if self.last_batch_iteration < 0:
            return list(self.min_lrs)
        gamma = self._gamma(self.last_batch_iteration)
        return [low + (high - low) * gamma for low, high in zip(self.min_lrs, self.max_lrs, strict=True)]

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
        ratio = self.get_lr_ratio()
        return [ratio * high for high in self.max_lrs]

    def get_lr_ratio(self) -> float:
        """What each group's rate is scaled by at the current iteration; 0 before the first step."""
        iteration = self.last_batch_iteration
        if iteration < 0:
            return 0.0
        if iteration < self.warmup_num_steps:
            return self.warmup_min_ratio + (1.0 - self.warmup_min_ratio) * self._warmup(iteration)
        done = iteration - self.warmup_num_steps + 1
        length = self.total_num_steps - self.warmup_num_steps
        cosine = (1.0 + math.cos(math.pi * min(1.0, done / max(1, length)))) / 2.0
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * cosine)
