"""Adam and AdamW on flat shards. `S` elements of a rank's shard.

Sources: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), algorithm 1; Loshchilov and
Hutter, "Decoupled Weight Decay Regularization" (2019), algorithm 2.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from dslaunch.engine.ops.shard import Shard
from dslaunch.engine.ops.step import step_


class AdamWScalars(ctypes.Structure):
    """AdamW::Scalars of csrc/adamw.h."""

    _fields_ = tuple(
        (name, ctypes.c_float)
        for name in (
            "one_minus_beta1",
            "one_minus_beta2",
            "eps",
            "step_size",
            "rsqrt_correction2",
            "decay",
            "l2",
        )
    )


class AdamWLowScalars(AdamWScalars):
    """InBFloat16<AdamW>::Scalars of csrc/stochastic.h."""

    _fields_ = (("step", ctypes.c_uint32),)


class AdamWHyper(ctypes.Structure):
    """AdamW::Hyper of csrc/adamw.h."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")),
        ("decoupled", ctypes.c_int32),
        ("bias_correction", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True)
class AdamWStep:
    """The scalars of one step of one parameter group; `step` counts from 1."""

    step: int
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool = True  # AdamW; False adds weight_decay * master to the gradient
    bias_correction: bool = True

    kernel: ClassVar[str] = "adamw"
    num_states: ClassVar[int] = 2
    whole_tensors: ClassVar[bool] = False
    low_states: ClassVar[bool] = True

    @property
    def correction1(self) -> float:
        return 1 - self.beta1**self.step if self.bias_correction else 1.0

    @property
    def correction2(self) -> float:
        return 1 - self.beta2**self.step if self.bias_correction else 1.0

    def scalars(self, low_states: bool) -> AdamWScalars:
        made = AdamWLowScalars if low_states else AdamWScalars
        return made(
            1 - self.beta1,
            1 - self.beta2,
            self.eps,
            self.lr / self.correction1,
            1 / math.sqrt(self.correction2),
            self.lr * self.weight_decay if self.decoupled else 0.0,
            0.0 if self.decoupled else self.weight_decay,
            *([self.step] if low_states else []),
        )

    def hyper(self) -> AdamWHyper:
        return AdamWHyper(
            self.lr,
            self.beta1,
            self.beta2,
            self.eps,
            self.weight_decay,
            int(self.decoupled),
            int(self.bias_correction),
        )

    def reference(self, theta: torch.Tensor, states: tuple[torch.Tensor, ...], g: torch.Tensor) -> None:
        m, v = states
        if self.decoupled and self.weight_decay:
            theta.mul_(1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            g = g.add(theta, alpha=self.weight_decay)
        m.lerp_(g, 1 - self.beta1)  # m = beta1 m + (1 - beta1) g
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)  # v = beta2 v + (1 - beta2) g^2
        denominator = v.sqrt().div_(math.sqrt(self.correction2)).add_(self.eps)
        theta.addcdiv_(m, denominator, value=-self.lr / self.correction1)


@dataclass(frozen=True, slots=True)
class AdamWShard:
    """What a step reads and writes, all [S] on one device."""

    master: torch.Tensor  # fp32, updated
    exp_avg: torch.Tensor  # fp32, updated
    exp_avg_sq: torch.Tensor  # fp32, updated
    grad: torch.Tensor  # fp32, bf16 or fp16, read
    param: (
        torch.Tensor | None
    )  # bf16 or fp16, written with the rounded master; None where master is the parameter itself


def adamw_(shard: AdamWShard, scalars: AdamWStep, grad_scale: torch.Tensor | None) -> None:
    """One step in place; the gradient times `grad_scale` (fp32 scalar tensor; None is 1)."""
    moments = (shard.exp_avg, shard.exp_avg_sq)
    step_(scalars, [Shard(shard.master, moments, shard.grad, shard.param)], grad_scale)
