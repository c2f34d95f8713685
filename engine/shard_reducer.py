"""Averaging gradients of which a rank keeps its own shard only (stages 2 and 3).

Legend: `P` elements of a bucket, `S` = P / W elements of this rank's shard, `W` data-parallel ranks.
Every backward pass is one round over all buckets, in their order, the same on every rank: when a bucket's
last gradient has arrived, one fused copy brings them into one of IN_FLIGHT buffers [P], which is
reduce-scattered; what arrives is added to the bucket's accumulated shard [S] before that buffer is used
again. So no more than IN_FLIGHT buffers of the largest bucket exist beside the shards, and nothing but the
buffer about to be reused is waited for. Buckets that stay incomplete (unused parameters) leave when the
round is closed: after backward, before the next forward or by `finish`. Shards that the host steps go on to
HostGradients in the last round of a step, and the others of them by `finish`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from dslaunch.engine import collectives
from dslaunch.engine.buckets import Bucket, member_views
from dslaunch.engine.collectives import Pending
from dslaunch.engine.host_gradients import HostGradients
from dslaunch.engine.reducer import arrived_twice

IN_FLIGHT = 2


class _Arriving(NamedTuple):
    """A reduce-scatter on its way to `bucket`; `into` is the bucket's own shard or added to it."""

    pending: Pending
    bucket: Bucket
    into: torch.Tensor  # [S]
    is_last: bool  # of this step, so that the shard can leave for the host


class ShardReducer:
    """Owns the hooks, the buffers and the collectives in flight. Without `overlap` rounds run when closed."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        overlap: bool,
        grad_dtype: torch.dtype,
        on_complete: Callable[[Bucket], None],
        host_gradients: HostGradients | None = None,
        averages: bool = True,
    ) -> None:
        self.averages = averages
        self.armed = False  # every round reduces; in the last one of a step, shards go on to the host
        self._host_gradients = host_gradients
        self._sent_last = [False] * len(buckets)
        self._buckets = buckets
        self._overlap = overlap
        self._dtype = grad_dtype
        self._on_complete = on_complete
        self._buffers: list[torch.Tensor] = []  # [largest P] each
        self._views: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}  # by buffer and bucket
        self._arriving: list[_Arriving | None] = [None] * IN_FLIGHT
        self._num_sent = 0
        self._missing = [len(bucket.members) for bucket in buckets]
        self._next = 0  # the first bucket of this round that has not been sent
        self._open = False  # gradients have arrived in this round
        self._fresh = [True] * len(buckets)  # nothing accumulated in this step yet
        self._handles = [
            param.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]
            for number, bucket in enumerate(buckets)
            for param in bucket.members
        ]
        self.clear()

    @property
    def has_sent(self) -> bool:
        """Whether shards have left for the host; else another backward pass is another round."""
        return any(self._sent_last)

    def after_backward(self) -> None:
        """Close the round if gradients have arrived in it."""
        if self._open:
            self.close_round()

    def close_round(self) -> None:
        """Send what this backward pass has not sent yet."""
        for number in range(self._next, len(self._buckets)):
            self._send(number)
        self._missing = [len(bucket.members) for bucket in self._buckets]
        self._next = 0
        self._open = False

    def finish(self) -> None:
        """Close the round (or make one of zeros) and wait until every shard holds its mean."""
        for bucket in self._buckets:
            if bucket.params.untyped_storage().size():
                bucket.check_in_place()
        if self._open or any(self._fresh):
            self.close_round()
        self._drain()
        if self._host_gradients is not None:
            for number, bucket in enumerate(self._buckets):
                if bucket.host is not None and not self._sent_last[number]:
                    self._sent_last[number] = True
                    self._host_gradients.leave(bucket)
            self._host_gradients.finish()

    def clear(self) -> None:
        """Forget all gradients; whatever arrives next is the first of a step."""
        self._drain()
        if self._host_gradients is not None:
            self._host_gradients.forget()
        self._sent_last = [False] * len(self._buckets)
        # Until the next backward, when activations have gone, none of this takes memory.
        for bucket in self._buckets:
            bucket.free_grads()
        for buffer in self._buffers:
            buffer.untyped_storage().resize_(0)
        self._fresh = [True] * len(self._buckets)
        self._missing = [len(bucket.members) for bucket in self._buckets]
        self._next = 0
        self._open = False

    def free_buffers(self) -> None:
        """Let go of the buffers that are reduced from, until the next gradients come."""
        self._drain()
        self._buffers, self._views = [], {}

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        alive = weakref.ref(self)  # autograd's hooks are out of the garbage collector's sight

        def arrived(_: torch.Tensor) -> None:
            reducer = alive()
            if reducer is not None:
                reducer._count_down(number)

        return arrived

    def _count_down(self, number: int) -> None:
        if number < self._next:  # a second backward pass before the first one's round was closed
            self.close_round()
        self._open = True
        self._missing[number] -= 1
        if self._missing[number] == 0:
            self._on_complete(self._buckets[number])
            while self._overlap and self._next < len(self._buckets) and self._missing[self._next] <= 0:
                self._send(self._next)

    def _send(self, number: int) -> None:
        bucket = self._buckets[number]
        assert bucket.grad_shard is not None
        if self._sent_last[number]:
            raise arrived_twice(bucket.spec.slots[0].name)
        is_last = self._overlap and self.armed and bucket.host is not None
        self._sent_last[number] = is_last
        self._next = number + 1
        fresh, self._fresh[number] = self._fresh[number], False
        if fresh:
            bucket.hold_grads()
        if collectives.num_ranks() == 1:
            self._take(number, bucket.grad_shard, add=not fresh)
            if is_last and self._host_gradients is not None:
                self._host_gradients.leave(bucket)
            return
        slot = self._num_sent % IN_FLIGHT
        self._num_sent += 1
        self._settle(slot)
        buffer = self._buffer(slot)[: bucket.spec.numel]
        self._take(number, buffer, slot=slot)
        into = bucket.grad_shard if fresh else torch.empty_like(bucket.grad_shard)
        pending = collectives.reduce_scatter(buffer, into, self.averages)
        self._arriving[slot] = _Arriving(pending, bucket, into, is_last)

    def _buffer(self, slot: int) -> torch.Tensor:
        """Buffer `slot`, with memory."""
        if not self._buffers:
            largest = max(bucket.spec.numel for bucket in self._buckets)
            device = self._buckets[0].params.device
            self._buffers = [torch.empty(largest, dtype=self._dtype, device=device) for _ in range(IN_FLIGHT)]
        buffer = self._buffers[slot]
        if not buffer.untyped_storage().size():
            buffer.untyped_storage().resize_(buffer.numel() * buffer.element_size())
        return buffer

    def _take(self, number: int, into: torch.Tensor, add: bool = False, slot: int = -1) -> None:
        """Bring the bucket's gradients into `into` [P], or add them; missing ones are zero, as is padding.

        `into` is always the same memory for a slot and a bucket; -1 is the bucket's own.
        """
        bucket = self._buckets[number]
        views = self._views.get((slot, number))
        if views is None:
            views = self._views[slot, number] = member_views(bucket.spec, into, bucket.shapes)
        found = [(view, param.grad) for view, param in zip(views, bucket.members, strict=True)]
        targets = [view for view, grad in found if grad is not None]
        if not add and (bucket.spec.has_padding or len(targets) < len(views)):
            into.zero_()
        if targets:
            grads = [grad for _, grad in found if grad is not None]
            (torch._foreach_add_ if add else torch._foreach_copy_)(targets, grads)
            for param in bucket.members:
                param.grad = None

    def _settle(self, slot: int) -> None:
        """Wait for the reduce-scatter out of buffer `slot` and add what it brings."""
        arriving = self._arriving[slot]
        if arriving is None:
            return
        self._arriving[slot] = None
        arriving.pending.wait()
        assert arriving.bucket.grad_shard is not None
        if arriving.into is not arriving.bucket.grad_shard:
            arriving.bucket.grad_shard.add_(arriving.into)
        if arriving.is_last and self._host_gradients is not None:
            self._host_gradients.leave(arriving.bucket)

    def _drain(self) -> None:
        for slot in range(IN_FLIGHT):
            self._settle((self._num_sent + slot) % IN_FLIGHT)
