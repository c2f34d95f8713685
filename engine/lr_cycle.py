"""DeepSpeed's LRRangeTest and OneCycle.

Sources: Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), section 3.3, and "A
disciplined approach to neural network hyper-parameters: Part 1" (2018), section 4.3; DeepSpeed's "Learning
Rate Schedulers" page.
"""

from __future__ import annotations

import math

import torch

from dslaunch.engine.log import logger
from dslaunch.engine.lr_schedule import Schedule

Momentum = tuple[float, float]

_BETA2 = 0.99  # DeepSpeed's cycle sets it, whatever the optimizer had


class LRRangeTest(Schedule):
    """min * (1 + rate * (i + 1) / size), to find the rate at which training breaks.

    With `staircase` the quotient is rounded down.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        lr_range_test_min_lr: float = 1e-3,
        lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0,
        lr_range_test_staircase: bool = False,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        self.min_lr = [float(lr_range_test_min_lr)] * len(optimizer.param_groups)
        self.step_size = lr_range_test_step_size
        self.step_rate = lr_range_test_step_rate
        self.staircase = lr_range_test_staircase
        if last_batch_iteration == -1:
            self._set(self.min_lr)

    def get_lr(self) -> list[float]:
        """The rate of each group at the current iteration."""
        interval = (self.last_batch_iteration + 1) / self.step_size
        if self.staircase:
            interval = math.floor(interval)
        return [low * (1 + self.step_rate * interval) for low in self.min_lr]


class OneCycle(Schedule):
    """Rates up in `cycle_first_step_size` steps and down again in `cycle_second_step_size`, then decay.

    The cycle is linear: min + (max - min) * s with s from 0 up to 1 and down to 0. After it, for interval
    k = steps since / decay_step_size: min / (1 + decay_lr_rate * k). Momentum (the first beta) goes the
    other way round, max - (max - min) * s, and then max * (1 + decay_mom_rate * k). As in DeepSpeed the
    first optimizer step runs with `cycle_min_mom`, and the second beta is 0.99. A stair count above 0 cuts
    its half of the cycle into so many steps of equal height, each of them flat.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        cycle_min_lr: float,
        cycle_max_lr: float,
        decay_lr_rate: float = 0.0,
        cycle_first_step_size: int = 2000,
        cycle_second_step_size: int | None = None,
        cycle_first_stair_count: int = 0,
        cycle_second_stair_count: int | None = None,
        decay_step_size: int = 0,
        cycle_momentum: bool = True,
        cycle_min_mom: float = 0.8,
        cycle_max_mom: float = 0.9,
        decay_mom_rate: float = 0.0,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        self.min_lr, self.max_lr = float(cycle_min_lr), float(cycle_max_lr)
        self.first_size = cycle_first_step_size
        self.total_size = cycle_first_step_size + (cycle_second_step_size or cycle_first_step_size)
        self.first_stair_count = cycle_first_stair_count
        self.second_stair_count = (
            cycle_first_stair_count if cycle_second_stair_count is None else cycle_second_stair_count
        )
        self.decay_step_size = decay_step_size
        self.decay_lr_rate, self.decay_mom_rate = decay_lr_rate, decay_mom_rate
        self.min_mom, self.max_mom = cycle_min_mom, cycle_max_mom
        groups = optimizer.param_groups
        self.cycle_momentum = cycle_momentum and all("betas" in group for group in groups)
        if cycle_momentum and not self.cycle_momentum:
            logger.warning("OneCycle: cycle_momentum is off, the optimizer has no betas")
        if last_batch_iteration == -1:
            self._set([self.min_lr] * len(groups))
            self._set_momentum((self.min_mom, _BETA2))

    def get_lr(self) -> list[float]:
        """The rate of each group at the current iteration."""
        if self.last_batch_iteration < self.total_size:
            rate = self.min_lr + (self.max_lr - self.min_lr) * self._height()
        else:
            rate = self.min_lr / (1 + self.decay_lr_rate * self._num_decays())
        return [rate] * len(self.optimizer.param_groups)

    def get_mom(self) -> list[Momentum] | None:
        """The betas of each group at the current iteration; None where momentum is not cycled."""
        if not self.cycle_momentum:
            return None
        if self.last_batch_iteration < self.total_size:
            momentum = self.max_mom - (self.max_mom - self.min_mom) * self._height()
        else:
            momentum = self.max_mom * (1 + self.decay_mom_rate * self._num_decays())
        return [(momentum, _BETA2)] * len(self.optimizer.param_groups)

    def step(self, batch_iteration: int | None = None) -> None:
        """Go to the next iteration, or to the one named, and set the groups' rates and betas."""
        super().step(batch_iteration)
        betas = self.get_mom()
        if betas is not None:
            self._set_momentum(betas[0])

    def _set_momentum(self, betas: Momentum) -> None:
        if self.cycle_momentum:
            for group in self.optimizer.param_groups:
                group["betas"] = betas

    def _height(self) -> float:
        """How far up the cycle is, from 0 to 1."""
        done = (self.last_batch_iteration + 1) % self.total_size
        if done <= self.first_size:
            return _stair(done, self.first_size, self.first_stair_count)
        return _stair(self.total_size - done, self.total_size - self.first_size, self.second_stair_count)

    def _num_decays(self) -> float:
        if self.decay_step_size == 0:
            return 0.0
        return (self.last_batch_iteration - self.total_size + 1) / self.decay_step_size


def _stair(done: int, size: int, num_stairs: int) -> float:
    """`done / size`, rounded down to a multiple of 1 / num_stairs where there are stairs."""
    return done / size if num_stairs <= 0 else done * num_stairs // size / num_stairs
