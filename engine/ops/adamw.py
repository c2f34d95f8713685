"""Adam and AdamW on flat shards, the reference of every fused kernel. `S` elements of a rank's shard.

Sources: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), algorithm 1; Loshchilov and
Hutter, "Decoupled Weight Decay Regularization" (2019), algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_CPU_CHUNK_NUMEL = 1 << 18  # temporaries stay in cache
_GPU_CHUNK_NUMEL = 1 << 26  # temporaries stay below 256 MiB


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


@dataclass(frozen=True, slots=True)
class AdamWShard:
    """What a step reads and writes, all [S] on one device."""

    master: torch.Tensor  # fp32, updated
    exp_avg: torch.Tensor  # fp32, updated
    exp_avg_sq: torch.Tensor  # fp32, updated
    grad: torch.Tensor  # fp32 or bf16, read
    param: (
        torch.Tensor | None
    )  # bf16, written with the rounded master; None where master is the parameter itself


def adamw_(shard: AdamWShard, scalars: AdamWStep, grad_scale: torch.Tensor | None) -> None:
    """One step in place; the gradient times `grad_scale` (fp32 scalar tensor; None is 1)."""
    numel = shard.master.numel()
    chunk = _GPU_CHUNK_NUMEL if shard.master.is_cuda else _CPU_CHUNK_NUMEL
    for start in range(0, numel, chunk):
        part = slice(start, start + chunk)
        _adamw_chunk(
            AdamWShard(
                shard.master[part],
                shard.exp_avg[part],
                shard.exp_avg_sq[part],
                shard.grad[part],
                None if shard.param is None else shard.param[part],
            ),
            scalars,
            grad_scale,
        )


def _adamw_chunk(shard: AdamWShard, s: AdamWStep, grad_scale: torch.Tensor | None) -> None:
    theta, m, v = shard.master, shard.exp_avg, shard.exp_avg_sq
    g = shard.grad.float()
    if grad_scale is not None:
        g = g * grad_scale
    if s.decoupled and s.weight_decay:
        theta.mul_(1 - s.lr * s.weight_decay)
    elif s.weight_decay:
        g = g.add(theta, alpha=s.weight_decay)
    m.lerp_(g, 1 - s.beta1)  # m = beta1 m + (1 - beta1) g
    v.mul_(s.beta2).addcmul_(g, g, value=1 - s.beta2)  # v = beta2 v + (1 - beta2) g^2
    correction1 = 1 - s.beta1**s.step if s.bias_correction else 1.0
    correction2 = 1 - s.beta2**s.step if s.bias_correction else 1.0
    denominator = v.sqrt().div_(math.sqrt(correction2)).add_(s.eps)
    theta.addcdiv_(m, denominator, value=-s.lr / correction1)
    if shard.param is not None:
        shard.param.copy_(theta)
