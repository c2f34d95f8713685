"""LAMB. You et al., "Large Batch Optimization for Deep Learning" (2020), algorithm 2 with phi(x) = x.

The trust ratio is of a whole tensor: a shard that holds several, or a part of one, is not the same optimizer.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import ClassVar

import torch


class LambScalars(ctypes.Structure):
    """Lamb::Scalars of csrc/lamb.h."""

    _fields_ = tuple(
        (name, ctypes.c_float)
        for name in (
            *("one_minus_beta1", "one_minus_beta2", "eps", "lr"),
            *("inv_correction1", "rsqrt_correction2", "weight_decay", "max_trust"),
        )
    )


class LambHyper(ctypes.Structure):
    """Lamb::Hyper of csrc/lamb.h."""

    _fields_ = tuple(
        (name, ctypes.c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay", "max_trust")
    )


@dataclass(frozen=True, slots=True)
class LambStep:
    """The scalars of one step of one parameter group; `step` counts from 1; the states are Adam's m and v."""

    step: int
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_trust: float = math.inf

    kernel: ClassVar[str] = "lamb"
    num_states: ClassVar[int] = 2
    whole_tensors: ClassVar[bool] = True
    low_states: ClassVar[bool] = False

    def scalars(self, low_states: bool) -> LambScalars:
        return LambScalars(
            1 - self.beta1,
            1 - self.beta2,
            self.eps,
            self.lr,
            1 / (1 - self.beta1**self.step),
            1 / math.sqrt(1 - self.beta2**self.step),
            self.weight_decay,
            self.max_trust,
        )

    def hyper(self) -> LambHyper:
        return LambHyper(self.lr, self.beta1, self.beta2, self.eps, self.weight_decay, self.max_trust)

    def reference(self, theta: torch.Tensor, states: tuple[torch.Tensor, ...], g: torch.Tensor) -> None:
        m, v = states
        m.lerp_(g, 1 - self.beta1)
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        denominator = v.sqrt().div_(math.sqrt(1 - self.beta2**self.step)).add_(self.eps)
        r = m.div(1 - self.beta1**self.step).div_(denominator).add_(theta, alpha=self.weight_decay)
        theta_norm, r_norm = theta.norm(), r.norm()
        ratio = torch.where((theta_norm > 0) & (r_norm > 0), theta_norm / r_norm, 1.0)
        theta.sub_(r * (self.lr * ratio.clamp(max=self.max_trust)))
