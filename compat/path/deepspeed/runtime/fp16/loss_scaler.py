"""The loss scaler's class, for isinstance() and types."""

from dslaunch.engine.loss_scale import LossScaler as DynamicLossScaler

LossScaler = LossScalerBase = DynamicLossScaler

__all__ = ["DynamicLossScaler", "LossScaler", "LossScalerBase"]
