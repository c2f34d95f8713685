"""Optimizers whose elements depend on one another, over sharded buckets: LAMB and Muon.

Legend: `P` elements of a bucket, `S` = P / W elements of this rank's shard, `M` members of the bucket.
Moments are elementwise and stay sharded as any rule's do. What depends on a whole tensor is made whole for
the moment of the step: LAMB's two norms of each tensor, summed over the ranks in one collective a step;
Muon's momentum of each matrix, gathered bucket by bucket, of which every rank makes those matrices
orthogonal that it has a part of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import torch

from dslaunch.engine import collectives
from dslaunch.engine.buckets import Bucket, member_views
from dslaunch.engine.ops.muon import Method, orthogonalized
from dslaunch.engine.ops.shard import Shard


@dataclass(frozen=True, slots=True)
class LambRule:
    """LAMB as DeepSpeed's FusedLamb has it; the states are Adam's m and v.

    It differs from the paper in two things: bias correction scales the step and not the direction, and the
    trust ratio is clamped from both sides.
    """

    step_size: float  # the learning rate, bias-corrected
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    eps_inside_sqrt: bool
    max_coeff: float
    min_coeff: float

    def measure(self, bucket: Bucket, shard: Shard, grad_scale: torch.Tensor | None) -> torch.Tensor:
        """Update the moments; the squares [M, 2] of this rank's part of each tensor and of its direction."""
        m, v = shard.states
        g = _gradient(shard, grad_scale)
        m.lerp_(g, 1 - self.beta1)
        v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        direction = self._direction(shard)
        sums = torch.zeros(len(bucket.members), 2, device=g.device)
        mine = list(_parts(bucket))
        parts = [flat[part] for _, part, _ in mine for flat in (shard.master, direction)]
        if parts:
            where = torch.tensor([index for index, _, _ in mine], device=g.device)
            sums[where] = torch.stack(torch._foreach_norm(parts)).square().view(-1, 2)
        return sums

    def apply(self, bucket: Bucket, shard: Shard, sums: torch.Tensor) -> None:
        """The update, with every tensor's `sums` [M, 2] over all ranks."""
        norms = sums.sqrt()
        ratios = (norms[:, 0] / norms[:, 1]).clamp(self.min_coeff, self.max_coeff)
        ratios = torch.where((norms > 0).all(dim=1), ratios, 1.0)
        direction = self._direction(shard)
        for index, part, _ in _parts(bucket):
            shard.master[part].sub_(direction[part].mul_(ratios[index]), alpha=self.step_size)
        if shard.param is not None:
            shard.param.copy_(shard.master)

    def _direction(self, shard: Shard) -> torch.Tensor:
        m, v = shard.states
        root = (v + self.eps).sqrt_() if self.eps_inside_sqrt else v.sqrt().add_(self.eps)
        return torch.div(m, root, out=root).add_(shard.master, alpha=self.weight_decay)


@dataclass(frozen=True, slots=True)
class MuonRule:
    """Muon for matrices, decoupled weight decay; the state is the momentum. Convolutions count as matrices
    [out, everything else], three-dimensional parameters as stacks of matrices.
    """

    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool
    num_steps: int
    method: Method

    def apply(self, bucket: Bucket, shard: Shard, grad_scale: torch.Tensor | None) -> None:
        """The step. Collective where buckets are sharded; one bucket's momentum is whole meanwhile."""
        (momentum,) = shard.states
        g = _gradient(shard, grad_scale)
        momentum.lerp_(g, 1 - self.momentum)
        whole = _whole(bucket, g.lerp_(momentum, self.momentum) if self.nesterov else momentum)
        matrices = member_views(bucket.spec, whole, bucket.shapes)
        for index, part, of_member in _parts(bucket):
            matrix = matrices[index]
            if matrix.dim() > 3:
                matrix = matrix.flatten(1)
            scale = sqrt(max(1.0, matrix.size(-2) / matrix.size(-1)))
            update = orthogonalized(matrix, self.num_steps, self.method).reshape(-1)[of_member]
            master = shard.master[part].mul_(1 - self.lr * self.weight_decay)
            master.sub_(update.to(master.dtype), alpha=self.lr * scale)
        if shard.param is not None:
            shard.param.copy_(shard.master)


def measured(
    rules: Sequence[object],
    buckets: Sequence[Bucket],
    shards: Sequence[Shard],
    grad_scale: torch.Tensor | None,
    sharded: bool,
) -> dict[int, torch.Tensor]:
    """Bucket number -> LAMB's sums [M, 2] over all ranks; empty without LAMB. Collective."""
    sums: dict[int, torch.Tensor] = {}
    for number, (bucket, shard) in enumerate(zip(buckets, shards, strict=True)):
        rule = rules[bucket.spec.group]
        if isinstance(rule, LambRule):
            sums[number] = rule.measure(bucket, shard, grad_scale)
    if not sums or not sharded:
        return sums
    flat = torch.cat(list(sums.values()))
    collectives.all_reduce_sum(flat)
    return dict(zip(sums, torch.split(flat, [len(own) for own in sums.values()]), strict=True))


def _gradient(shard: Shard, grad_scale: torch.Tensor | None) -> torch.Tensor:
    """The gradient [S] in fp32, scaled; a tensor of its own."""
    g = shard.grad.to(shard.master.dtype, copy=True)
    return g if grad_scale is None else g.mul_(grad_scale)


def _parts(bucket: Bucket) -> Iterator[tuple[int, slice, slice]]:
    """The members this rank has elements of: index, where in the shard [S], where in the member."""
    for index in range(len(bucket.members)):
        part, of_member = bucket.parts(index)
        if part.start < part.stop:
            yield index, part, of_member


def _whole(bucket: Bucket, own: torch.Tensor) -> torch.Tensor:
    """Every rank's `own` [S] as one [P]; in bf16 on GPUs, where what follows is no more exact."""
    if own.is_cuda:
        own = own.bfloat16()
    if own.numel() == bucket.spec.numel:
        return own
    whole = torch.empty(bucket.spec.numel, dtype=own.dtype, device=own.device)
    collectives.all_gather(whole, own).wait()
    return whole
