"""Averaging whole gradients over ranks, bucket by bucket, while backward still runs (stages 0 and 1).

Legend: `P` elements of a bucket.
Autograd leaves the first gradients of a step where it likes; when the last one of a bucket has arrived, one
fused copy brings them into the bucket [P], which costs less than adding each to zeros. Later micro steps
accumulate in place. On the last micro step of an optimizer step (`armed`) a full bucket is sent off at
once, provided all buckets before it are: ranks that differ in which parameters they use still issue the
same collectives in the same order. `finish` sends what hooks did not (unused parameters) and waits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from dslaunch.engine import collectives
from dslaunch.engine.buckets import Bucket, Sharding
from dslaunch.engine.collectives import Pending
from dslaunch.engine.errors import EngineError
from dslaunch.engine.host_gradients import HostGradients


class GradientReducer(Protocol):
    """What turns gradients into the mean over ranks of this rank's shard; one class per gradient policy."""

    armed: bool
    averages: bool  # over the ranks; else their gradients are added up, and "mean" stands for that

    @property
    def has_sent(self) -> bool:
        """Whether another backward pass would come too late."""

    def after_backward(self) -> None:
        """A backward pass of the engine is over."""

    def finish(self) -> None:
        """Average everything that is left and wait for all of it; then `Bucket.grad_shard` holds the mean."""

    def clear(self) -> None:
        """Forget all gradients; the next backward is the first of a step."""

    def free_buffers(self) -> None:
        """Give memory back that is only needed while gradients are under way."""

    def remove(self) -> None:
        """Take the hooks off the parameters."""


class Reducer:
    """Owns the hooks and the collectives in flight. Without `overlap` no bucket leaves before `finish`.

    Buckets that the host steps go on to `host_gradients` at once, and are then no longer here.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        sharding: Sharding,
        num_ranks: int,
        overlap: bool,
        host_gradients: HostGradients | None = None,
        averages: bool = True,
    ) -> None:
        self.averages = averages
        self.armed = False  # the engine sets it: the next backward is the last of this optimizer step
        self._buckets = buckets
        self._num_ranks = num_ranks
        self._sharded = sharding.num_shards > 1
        self._host_gradients = host_gradients
        self._overlap = overlap and (num_ranks > 1 or host_gradients is not None)
        self._missing = [len(bucket.members) for bucket in buckets]
        self._in_flight: list[Pending | None] = []  # of buckets [0, len); None: there is nothing to wait for
        self._finished = False  # everything of this step has been averaged
        self._filled = [False] * len(buckets)  # whether the bucket holds gradients of this step
        self._handles = [
            param.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._hook(number, index)
            )
            for number, bucket in enumerate(buckets)
            for index, param in enumerate(bucket.members)
        ]
        self.clear()

    @property
    def has_sent(self) -> bool:
        """Whether some bucket of this optimizer step has already been reduced or is being reduced."""
        return bool(self._in_flight) or self._finished

    def after_backward(self) -> None:
        """Count anew: the next backward pass brings every gradient again.

        Buckets that stayed incomplete must not let autograd accumulate in a narrower dtype than theirs.
        """
        for number, bucket in enumerate(self._buckets):
            begun = 0 < self._missing[number] < len(bucket.members)
            if begun and not bucket.grads_in_place and number >= len(self._in_flight):
                self._adopt(number)
        self._missing = [len(bucket.members) for bucket in self._buckets]

    def finish(self) -> None:
        """Average everything that is left and wait for all of it; then `Bucket.grad_shard` holds the mean."""
        if self._finished:
            return
        self._finished = True
        for bucket in self._buckets:
            bucket.check_in_place()
        for number in range(len(self._in_flight), len(self._buckets)):
            self._adopt(number)
            self._send_next()
        for pending in self._in_flight:
            if pending is not None:
                pending.wait()
        if self._host_gradients is not None:
            self._host_gradients.finish()

    def clear(self) -> None:
        """Forget all gradients and what was in flight."""
        if self._host_gradients is not None:
            self._host_gradients.forget()
        for bucket in self._buckets:
            for param in bucket.members:
                param.grad = None
            if bucket.grads is not None:  # its memory is free for activations until the next backward
                bucket.grads.untyped_storage().resize_(0)
        self._in_flight.clear()
        self._finished = False
        self._missing = [len(bucket.members) for bucket in self._buckets]
        self._filled = [False] * len(self._buckets)

    def free_buffers(self) -> None:
        """There are none beside the gradients."""

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, number: int, index: int) -> Callable[[torch.Tensor], None]:
        name = self._buckets[number].spec.slots[index].name
        alive = weakref.ref(self)  # autograd's hooks are out of the garbage collector's sight

        def arrived(_: torch.Tensor) -> None:
            reducer = alive()
            if reducer is not None:
                reducer._count_down(number, name)

        return arrived

    def _count_down(self, number: int, name: str) -> None:
        if number < len(self._in_flight):
            raise arrived_twice(name)
        self._missing[number] -= 1
        if self._missing[number] == 0:
            self._adopt(number)
            if self.armed and self._overlap:
                self._send_ready()

    def _adopt(self, number: int) -> None:
        """Bring the bucket's gradients into it, wherever autograd or the script has left them.

        A missing gradient is zero, also when the script has set it to None after it was adopted.
        """
        bucket = self._buckets[number]
        assert bucket.grads is not None
        first, in_place = not self._filled[number], bucket.grads_in_place
        self._filled[number] = True
        if first:
            bucket.grads.untyped_storage().resize_(bucket.grads.numel() * bucket.grads.element_size())
            if bucket.spec.has_padding:
                bucket.grads.zero_()
        views, grads = [], []
        for param, view in zip(bucket.members, bucket.grad_views, strict=True):
            grad = param.grad
            if grad is view:
                continue
            if grad is not None:
                views.append(view)
                grads.append(grad)
            elif first or in_place:
                view.zero_()
            param.grad = view if in_place else None
        add = not first and not in_place
        if grads:
            (torch._foreach_add_ if add else torch._foreach_copy_)(views, grads)

    def _send_ready(self) -> None:
        while len(self._in_flight) < len(self._buckets) and self._missing[len(self._in_flight)] <= 0:
            self._send_next()

    def _send_next(self) -> None:
        bucket = self._buckets[len(self._in_flight)]
        pending = self._send(bucket)
        if self._host_gradients is not None and bucket.host is not None:
            self._host_gradients.leave(bucket, pending)
            pending = None
        self._in_flight.append(pending)

    def _send(self, bucket: Bucket) -> Pending | None:
        assert bucket.grads is not None
        assert bucket.grad_shard is not None
        if self._num_ranks == 1:
            return None
        if self._sharded:
            return collectives.reduce_scatter(bucket.grads, bucket.grad_shard, self.averages)
        return collectives.all_reduce(bucket.grads, self.averages)


def arrived_twice(name: str) -> EngineError:
    """The error where a gradient comes too late for this step."""
    return EngineError(
        f"the gradient of {name} arrived again after its bucket had been averaged over the ranks or had left "
        "for the host",
        "call backward once per step on the sum of losses, or set zero_optimization.overlap_comm to false",
    )
