"""Lion. Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import ClassVar

import torch


class LionScalars(ctypes.Structure):
    """Lion::Scalars of csrc/lion.h."""

    _fields_ = tuple((name, ctypes.c_float) for name in ("lr", "one_minus_beta1", "one_minus_beta2", "decay"))


class LionHyper(ctypes.Structure):
    """Lion::Hyper of csrc/lion.h."""

    _fields_ = tuple((name, ctypes.c_double) for name in ("lr", "beta1", "beta2", "weight_decay"))


@dataclass(frozen=True, slots=True)
class LionStep:
    """The scalars of one step of one parameter group; the state is the momentum."""

    lr: float
    beta1: float
    beta2: float
    weight_decay: float

    kernel: ClassVar[str] = "lion"
    num_states: ClassVar[int] = 1
    whole_tensors: ClassVar[bool] = False
    low_states: ClassVar[bool] = False

    def scalars(self, low_states: bool) -> LionScalars:
        return LionScalars(self.lr, 1 - self.beta1, 1 - self.beta2, self.lr * self.weight_decay)

    def hyper(self) -> LionHyper:
        return LionHyper(self.lr, self.beta1, self.beta2, self.weight_decay)

    def reference(self, theta: torch.Tensor, states: tuple[torch.Tensor, ...], g: torch.Tensor) -> None:
        (m,) = states
        update = m.lerp(g, 1 - self.beta1).sign_()
        theta.mul_(1 - self.lr * self.weight_decay).sub_(update, alpha=self.lr)
        m.lerp_(g, 1 - self.beta2)
