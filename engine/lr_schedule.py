"""What every schedule of DeepSpeed's has in common.

The engine calls `step()` after every applied optimizer step. The rates are set at construction for
iteration -1 and the first `step()` goes to iteration 0, so that the warm-ups run their first two optimizer
steps at the lowest rate. Source: DeepSpeed's "Learning Rate Schedulers" page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch


class LrScheduler(Protocol):
    """What the engine asks of a scheduler, its own or the script's."""

    def step(self) -> None: ...

    def state_dict(self) -> dict[str, object]: ...

    def load_state_dict(self, state_dict: dict[str, object]) -> None: ...


class Schedule:
    """Rates (and momenta, in `OneCycle`) as functions of an iteration, which is all of the state."""

    def __init__(self, optimizer: torch.optim.Optimizer, last_batch_iteration: int) -> None:
        self.optimizer = optimizer
        self.last_batch_iteration = last_batch_iteration
        self._last_lr: list[float] | None = None

    def get_lr(self) -> list[float]:
        """The rate of each group at the current iteration; iteration -1 is before the first step."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """The rates that were set last; AssertionError before any were."""
        assert self._last_lr is not None, "need to call step() first"
        return self._last_lr

    def step(self, batch_iteration: int | None = None) -> None:
        """Go to the next iteration, or to the one named, and set the groups' rates."""
        if batch_iteration is None:
            batch_iteration = self.last_batch_iteration + 1
        self.last_batch_iteration = batch_iteration
        self._set(self.get_lr())

    def state_dict(self) -> dict[str, object]:
        """The iteration; everything else is configuration."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Take up the iteration of `state_dict`; the optimizer's groups carry their rates themselves."""
        iteration = state_dict["last_batch_iteration"]
        assert isinstance(iteration, int)
        self.last_batch_iteration = iteration

    def _set(self, rates: list[float]) -> None:
        """Set the groups' rates; one that is a tensor stays that tensor."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._last_lr = rates
