"""How an engine counts its optimizer steps, those that turn out to be left out as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dslaunch.engine import log
from dslaunch.engine.config import EngineConfig
from dslaunch.engine.dataloader import TrainingDataLoader
from dslaunch.engine.lr_schedules import LrScheduler
from dslaunch.engine.optimizer import ShardedOptimizer
from dslaunch.engine.verdict import Advance, can_be_taken_back
from dslaunch.engine.watch import Progress


class EngineProgress:
    """Mixed into `Engine`. What depends on the last step's verdict settles it first, and waits if need be."""

    settings: EngineConfig
    zero_optimizer: ShardedOptimizer | None
    lr_scheduler: LrScheduler | None
    training_dataloader: TrainingDataLoader | None
    global_rank: int
    global_steps: int
    global_samples: int
    micro_steps: int
    _skipped = 0
    _applied = False
    _is_open = False  # the last step counts as applied until its verdict is read
    _advance: Advance | None = None

    @property
    def skipped_steps(self) -> int:
        """Optimizer steps that were left out."""
        self.settle()
        return self._skipped

    @skipped_steps.setter
    def skipped_steps(self, value: int) -> None:
        self._skipped = value

    def was_step_applied(self) -> bool:
        """Whether the last `step()` updated the parameters."""
        self.settle()
        return self._applied

    def get_lr(self) -> list[float]:
        """The learning rate of every parameter group."""
        self.settle()
        return (
            [] if self.zero_optimizer is None else [group["lr"] for group in self.zero_optimizer.param_groups]
        )

    def get_mom(self) -> list[object]:
        """The betas of every parameter group, or its momentum; 0 where it has neither."""
        self.settle()
        groups = [] if self.zero_optimizer is None else self.zero_optimizer.param_groups
        return [group.get("betas", group.get("momentum", 0.0)) for group in groups]

    def settle(self) -> None:
        """Read the last step's verdict; what was counted on it is taken back where it was left out."""
        if self._is_open and self.zero_optimizer is not None:
            self._is_open = False
            if self.zero_optimizer.overflow:
                self._applied = False
                if self._advance is not None:
                    self._advance.take_back(self.zero_optimizer)
                self._tell_left_out(self.zero_optimizer)
            self._advance = None

    def _conclude(self, optimizer: ShardedOptimizer, lr_kwargs: Mapping[str, Any]) -> None:
        """Count the step as applied or skipped; the schedule follows."""
        scheduler = self.lr_scheduler
        self._is_open = not optimizer.is_decided and can_be_taken_back(scheduler)
        if not self._is_open and optimizer.overflow:
            self._tell_left_out(optimizer)
            return
        self._applied = True
        if scheduler is None:
            return
        if self._is_open:
            self._advance = Advance.make(scheduler, optimizer, lr_kwargs)
        else:
            scheduler.step(**lr_kwargs)

    def _tell_left_out(self, optimizer: ShardedOptimizer) -> None:
        self._skipped += 1
        norm = optimizer.global_norm()
        log.warn(
            self.global_rank,
            optimizer.scaling_said or f"step {self.global_steps} is left out: the gradient norm is {norm}",
        )

    def _progress(self) -> Progress:
        loader, optimizer = self.training_dataloader, self.zero_optimizer
        groups: list[dict[str, Any]] = [] if optimizer is None else optimizer.param_groups
        return Progress(
            self.global_steps,
            self.global_samples,
            self._skipped,
            self.micro_steps + 1,
            [group["lr"] for group in groups],
            [group.get("betas", group.get("momentum", 0.0)) for group in groups],
            0 if loader is None else max(loader.epoch - 1, 0),
            optimizer.loss_scale if optimizer is not None and self.settings.scales_loss else None,
        )
