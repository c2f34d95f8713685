"""Stochastic gradient descent, plain and with momentum, as torch.optim.SGD defines them.

Source: Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import ClassVar

import torch


class SgdScalars(ctypes.Structure):
    """Sgd::Scalars of csrc/sgd.h."""

    _fields_ = tuple((name, ctypes.c_float) for name in ("lr", "l2"))


class SgdHyper(ctypes.Structure):
    """Sgd::Hyper of csrc/sgd.h."""

    _fields_ = tuple((name, ctypes.c_double) for name in ("lr", "weight_decay"))


class SgdMomentumScalars(ctypes.Structure):
    """SgdMomentum::Scalars of csrc/sgd.h."""

    _fields_ = tuple(
        (name, ctypes.c_float)
        for name in ("lr", "l2", "momentum", "one_minus_dampening", "gradient_weight", "buffer_weight")
    )


class SgdMomentumHyper(ctypes.Structure):
    """SgdMomentum::Hyper of csrc/sgd.h."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("lr", "weight_decay", "momentum", "dampening")),
        ("nesterov", ctypes.c_int32),
        ("first", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True)
class SgdStep:
    """The scalars of one step of one parameter group; there is no state."""

    lr: float
    weight_decay: float

    kernel: ClassVar[str] = "sgd"
    num_states: ClassVar[int] = 0
    whole_tensors: ClassVar[bool] = False
    low_states: ClassVar[bool] = False

    def scalars(self, low_states: bool) -> SgdScalars:
        return SgdScalars(self.lr, self.weight_decay)

    def hyper(self) -> SgdHyper:
        return SgdHyper(self.lr, self.weight_decay)

    def reference(self, theta: torch.Tensor, states: tuple[torch.Tensor, ...], g: torch.Tensor) -> None:
        theta.sub_(g.add(theta, alpha=self.weight_decay), alpha=self.lr)


@dataclass(frozen=True, slots=True)
class SgdMomentumStep:
    """The scalars of one step of one parameter group; the state is the momentum buffer, at first 0."""

    lr: float
    weight_decay: float
    momentum: float
    dampening: float = 0.0
    nesterov: bool = False
    first: bool = False  # the buffer starts as the gradient, not damped

    kernel: ClassVar[str] = "sgd_momentum"
    num_states: ClassVar[int] = 1
    whole_tensors: ClassVar[bool] = False
    low_states: ClassVar[bool] = False

    def scalars(self, low_states: bool) -> SgdMomentumScalars:
        return SgdMomentumScalars(
            self.lr,
            self.weight_decay,
            self.momentum,
            1.0 if self.first else 1 - self.dampening,
            1.0 if self.nesterov else 0.0,
            self.momentum if self.nesterov else 1.0,
        )

    def hyper(self) -> SgdMomentumHyper:
        return SgdMomentumHyper(
            self.lr, self.weight_decay, self.momentum, self.dampening, int(self.nesterov), int(self.first)
        )

    def reference(self, theta: torch.Tensor, states: tuple[torch.Tensor, ...], g: torch.Tensor) -> None:
        (buffer,) = states
        g = g.add(theta, alpha=self.weight_decay)
        buffer.mul_(self.momentum).add_(g, alpha=1.0 if self.first else 1 - self.dampening)
        theta.sub_(g.add(buffer, alpha=self.momentum) if self.nesterov else buffer, alpha=self.lr)
