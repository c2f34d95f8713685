"""Flat buffers: a model's parameters and gradients as views into buckets.

Legend: `P` elements of a bucket, `S` = P / W elements of this rank's shard, `W` shards (ranks at stage 1,
one at stage 0). `param.data` is a view into `Bucket.params`, the output of one all-gather; `param.grad` is
a view into `Bucket.grads`, the input of one reduce-scatter. Nothing is copied between backward, the
collectives and the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from dslaunch.engine.errors import EngineError
from dslaunch.engine.layout import BucketSpec, Layout


@dataclass(frozen=True, slots=True)
class Sharding:
    """How many shards every bucket has and which one this rank steps; stage 0 has one shard, held by all."""

    num_shards: int
    index: int


@dataclass(slots=True, eq=False)
class Bucket:
    """The tensors of one bucket."""

    spec: BucketSpec
    members: tuple[torch.nn.Parameter, ...]  # in slot order
    params: torch.Tensor  # [P] compute dtype
    grads: torch.Tensor  # [P] accumulation dtype
    grad_views: tuple[torch.Tensor, ...]  # [shape of the member] each, into grads
    own: slice  # this rank's shard of the bucket

    @property
    def param_shard(self) -> torch.Tensor:
        """This rank's parameters, [S]."""
        return self.params[self.own]

    @property
    def grad_shard(self) -> torch.Tensor:
        """This rank's gradients, [S]; the mean over ranks once the bucket is reduced."""
        return self.grads[self.own]

    @property
    def grads_in_place(self) -> bool:
        """Whether autograd accumulates into the bucket itself; not so where the dtypes differ."""
        return self.grads.dtype == self.params.dtype

    def adopt_gradient(self, index: int) -> None:
        """Bring member `index`'s gradient into the bucket, wherever autograd or the script has left it.

        With gradients in place that is one identity test, unless someone set `.grad` to None (then the
        bucket held nothing worth keeping) or replaced it.
        """
        param, view = self.members[index], self.grad_views[index]
        grad = param.grad
        if grad is view:
            return
        if self.grads_in_place:
            if grad is None:
                view.zero_()
            else:
                view.copy_(grad)
            param.grad = view
        elif grad is not None:
            view.add_(grad)
            param.grad = None

    def adopt_gradients(self) -> None:
        """`adopt_gradient` of every member."""
        for index in range(len(self.members)):
            self.adopt_gradient(index)

    def check_in_place(self) -> None:
        """EngineError if the module was cast or moved, which takes the parameters out of the bucket."""
        if self.members[0].untyped_storage().data_ptr() != self.params.untyped_storage().data_ptr():
            raise EngineError(
                f"parameter {self.spec.slots[0].name} has left its flat buffer",
                "do not move, cast or reassign parameters after initialize",
            )

    def clear_gradients(self) -> None:
        """Zero the gradients [P] and point every member's `.grad` at its view again."""
        self.grads.zero_()
        for param, view in zip(self.members, self.grad_views, strict=True):
            param.grad = view if self.grads_in_place else None


def build_buckets(
    layout: Layout,
    named: Mapping[str, torch.nn.Parameter],
    sharding: Sharding,
    grad_dtype: torch.dtype,
) -> list[Bucket]:
    """Move the parameters into flat buffers (values kept) and give them zero gradients of `grad_dtype`."""
    return [
        _build(spec, [named[slot.name] for slot in spec.slots], sharding, grad_dtype)
        for spec in layout.buckets
    ]


def _build(
    spec: BucketSpec, members: Sequence[torch.nn.Parameter], sharding: Sharding, grad_dtype: torch.dtype
) -> Bucket:
    first = members[0]
    params = torch.zeros(spec.numel, dtype=first.dtype, device=first.device)
    grads = torch.zeros(spec.numel, dtype=grad_dtype, device=first.device)
    views: list[torch.Tensor] = []
    for slot, param in zip(spec.slots, members, strict=True):
        where = slice(slot.offset, slot.offset + slot.numel)
        home = params[where].view(param.shape)
        home.copy_(param.detach())
        param.data = home
        views.append(grads[where].view(param.shape))
    own = spec.shard(sharding.num_shards, sharding.index)
    bucket = Bucket(spec, tuple(members), params, grads, tuple(views), slice(own.start, own.stop))
    bucket.clear_gradients()
    return bucket
