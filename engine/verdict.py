"""Whether an optimizer step counts: where the device knows it before the host, the host need not wait.

A step whose gradient norm is inf or nan is left out. Kernels read `found_inf` on the device; the host reads
the norm when it has arrived, at the latest before the next step. Until then it takes the step as applied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dslaunch.engine.lr_schedule import LrScheduler

LATE_DEVICES = ["cuda"]  # those that run behind the host


class Verdict:
    """The norm of one step's gradients on its way to the host."""

    def __init__(self, norm: torch.Tensor) -> None:
        self.found_inf = norm.isfinite().logical_not_().float()  # on the device; 1: leave the step out
        self._norm = norm
        self._arrived: torch.cuda.Event | None = None
        if norm.is_cuda:
            self._norm = torch.empty((), dtype=norm.dtype, pin_memory=True)
            self._norm.copy_(norm, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def norm(self) -> float:
        """The norm; waits until the device has computed it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._norm.item()


def counts(norm: float) -> bool:
    """Whether a step with gradients of this norm is applied."""
    return math.isfinite(norm)


@dataclass(frozen=True, slots=True)
class Advance:
    """A schedule's step that may have to be taken back; groups without their parameters, before and after."""

    scheduler: LrScheduler
    state: dict[str, object]
    before: list[dict[str, object]]
    after: list[dict[str, object]]

    @classmethod
    def make(
        cls, scheduler: LrScheduler, optimizer: torch.optim.Optimizer, lr_kwargs: Mapping[str, Any]
    ) -> Advance:
        """Let `scheduler` step."""
        state, before = dict(scheduler.state_dict()), _settings(optimizer)
        scheduler.step(**lr_kwargs)
        return cls(scheduler, state, before, _settings(optimizer))

    def take_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Undo it, but for what the script has changed since."""
        self.scheduler.load_state_dict(self.state)
        for group, before, after in zip(optimizer.param_groups, self.before, self.after, strict=True):
            for name, value in after.items():
                if group.get(name) == value and name in before:
                    group[name] = before[name]


def can_be_taken_back(scheduler: LrScheduler | None) -> bool:
    """Whether a schedule's step can be undone."""
    return scheduler is None or (hasattr(scheduler, "state_dict") and hasattr(scheduler, "load_state_dict"))


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, object]]:
    return [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
