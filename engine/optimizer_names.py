"""What scripts written for DeepSpeed read from its optimizers: names for what the engine's has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dslaunch.engine.loss_scale import LossScaler

if TYPE_CHECKING:
    from dslaunch.engine.buckets import ShardState


class LossScaling:
    """The loss scale as it is, 1 unless in fp16; read-only."""

    def __init__(self, optimizer: DeepSpeedNames) -> None:
        self._optimizer = optimizer

    @property
    def cur_scale(self) -> float:
        """What the loss is multiplied by."""
        return self._optimizer.loss_scale

    loss_scale = cur_scale

    @property
    def dynamic_loss_scale(self) -> bool:
        """Whether overflows change it."""
        scaler = self._optimizer.scaler
        return scaler is not None and scaler.dynamic

    dynamic = dynamic_loss_scale

    @property
    def cur_iter(self) -> int:
        """Steps so far, those that were left out too."""
        scaler = self._optimizer.scaler
        return 0 if scaler is None else scaler.state.num_steps

    @property
    def cur_hysteresis(self) -> int:
        """Overflows until the scale halves."""
        scaler = self._optimizer.scaler
        return 0 if scaler is None else scaler.state.hysteresis_left

    @property
    def scale_window(self) -> int:
        """Good steps until the scale doubles."""
        scaler = self._optimizer.scaler
        return 0 if scaler is None else scaler.config.loss_scale_window

    @property
    def min_loss_scale(self) -> float:
        """An overflow at this scale ends the run."""
        scaler = self._optimizer.scaler
        return 0.0 if scaler is None else scaler.config.min_loss_scale


class DeepSpeedNames:
    """Of the optimizer, which has the rest."""

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by before backward."""
        raise NotImplementedError

    @property
    def scaler(self) -> LossScaler | None:
        """What decides the loss scale, the last step's outcome counted in."""
        raise NotImplementedError

    @property
    def shards(self) -> Sequence[ShardState]:
        """The state of every bucket on this rank."""
        raise NotImplementedError

    @property
    def optimizer(self) -> DeepSpeedNames:
        """What DeepSpeed wraps: here one optimizer does both."""
        return self

    @property
    def loss_scaler(self) -> LossScaling:
        """The loss scale."""
        return LossScaling(self)

    loss_scale_config = loss_scaler

    @property
    def dynamic_loss_scale(self) -> bool:
        """Whether overflows change the loss scale."""
        return self.loss_scaler.dynamic

    @property
    def fp32_partitioned_groups_flat(self) -> list[torch.Tensor]:
        """This rank's fp32 masters, 1-D, bucket by bucket: to read, for some are made by asking."""
        return [state.master.values() for state in self.shards]

    single_partition_of_fp32_groups = fp32_groups_flat = fp32_partitioned_groups_flat
