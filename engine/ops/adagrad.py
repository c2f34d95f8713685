"""Adagrad, with torch.optim.Adagrad's eps and lr_decay.

Source: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning" (2011).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import ClassVar

import torch


class AdagradScalars(ctypes.Structure):
    """Adagrad::Scalars of csrc/adagrad.h."""

    _fields_ = tuple((name, ctypes.c_float) for name in ("step_size", "l2", "eps"))


class AdagradHyper(ctypes.Structure):
    """Adagrad::Hyper of csrc/adagrad.h."""

    _fields_ = tuple((name, ctypes.c_double) for name in ("lr", "lr_decay", "eps", "weight_decay"))


@dataclass(frozen=True, slots=True)
class AdagradStep:
    """The scalars of one step of one group; `step` counts from 1; the state is the sum of squares."""

    step: int
    lr: float
    lr_decay: float
    eps: float
    weight_decay: float

    kernel: ClassVar[str] = "adagrad"
    num_states: ClassVar[int] = 1
    whole_tensors: ClassVar[bool] = False
    low_states: ClassVar[bool] = False

    @property
    def step_size(self) -> float:
        return self.lr / (1 + (self.step - 1) * self.lr_decay)

    def scalars(self, low_states: bool) -> AdagradScalars:
        return AdagradScalars(self.step_size, self.weight_decay, self.eps)

    def hyper(self) -> AdagradHyper:
        return AdagradHyper(self.lr, self.lr_decay, self.eps, self.weight_decay)

    def reference(self, theta: torch.Tensor, states: tuple[torch.Tensor, ...], g: torch.Tensor) -> None:
        (total,) = states
        if self.weight_decay:
            g = g.add(theta, alpha=self.weight_decay)
        total.addcmul_(g, g)
        theta.addcdiv_(g, total.sqrt().add_(self.eps), value=-self.step_size)
