"""What an optimizer step does about the gradient norm: clipping, loss scale, steps that are left out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dslaunch.engine.loss_scale import LossScaler


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """What `step` does about the gradient norm."""

    clipping: float  # largest global norm; 0: do not clip
    skip_nonfinite: bool  # leave out steps whose norm is inf or nan
    scaler: LossScaler | None = None  # fp16: what the gradients were multiplied by

    @property
    def is_eager(self) -> bool:
        """Whether a bucket may be stepped before the gradients of all are known."""
        return self.clipping == 0 and not self.skip_nonfinite

    def unscaled(self, norm: torch.Tensor) -> torch.Tensor:
        """The norm without the loss scale in it."""
        return norm if self.scaler is None else norm / self.scaler.scale

    def gradient_scale(self, norm: torch.Tensor) -> torch.Tensor | None:
        """What gradients are multiplied by: 1 / loss scale / max(1, (norm + 1e-6) / clipping)."""
        scaler, clipping = self.scaler, self.clipping
        if clipping == 0:
            return None if scaler is None else torch.full_like(norm, 1 / scaler.scale)
        scale = ((norm + 1e-6) / clipping).clamp(min=1.0).reciprocal()
        return scale if scaler is None else scale / scaler.scale
