"""Gradients on their way to the host, bucket by bucket, while backward still runs.

Legend: `S` elements of this rank's shard of a bucket.
A bucket leaves once its mean is final: a lane takes its norm and copies it [S], in its own dtype, into pinned
memory. Its memory on the device is freed when two more buckets have left, so that compute never waits for the
bus unless the bus is the slower one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch

from dslaunch.engine.buckets import Bucket, HostGrad
from dslaunch.engine.host_memory import host_empty, pinned_empty
from dslaunch.engine.lanes import Lane, Waitable

IN_FLIGHT = 2


class HostGradients:
    """What reducers hand the finished ones of `buckets` to."""

    def __init__(self, buckets: Sequence[Bucket], lane: Lane, pin: bool) -> None:
        """Give every bucket its place on the host."""
        self._buckets = buckets
        self._lane = lane
        self.on_leave: Callable[[Bucket], None] | None = None  # told of a bucket once its gradient leaves
        self._numbers = {id(bucket): number for number, bucket in enumerate(buckets)}
        self._leaving: deque[Bucket] = deque()
        for bucket in buckets:
            assert bucket.grad_shard is not None
            numel, dtype = bucket.grad_shard.numel(), bucket.grad_shard.dtype
            bucket.host = HostGrad((pinned_empty if pin else host_empty)(numel, dtype))
            bucket.free_grads()
        device = buckets[0].params.device
        self._norms = torch.zeros(len(buckets), dtype=torch.float32, device=device)

    @torch.no_grad()
    def leave(self, bucket: Bucket, after: Waitable | None = None) -> None:
        """Move the bucket's shard out; it is final once `after` has arrived."""
        bucket.finish_stepping()  # with the gradient before this one, which a script's forward has not needed
        host, shard = bucket.host, bucket.grad_shard
        assert host is not None
        assert shard is not None
        norm = self._norms[self._numbers[id(bucket)]]
        grad = host.grad

        def move() -> None:
            torch.linalg.vector_norm(shard, dtype=torch.float32, out=norm)
            grad.copy_(shard, non_blocking=True)

        earlier = (self._lane.fence(),) if after is None else (self._lane.fence(), after)
        host.arrived = self._lane.run(move, *earlier)
        host.edited = False
        self._leaving.append(bucket)
        if len(self._leaving) > IN_FLIGHT:
            self._free(self._leaving.popleft())
        if self.on_leave is not None:
            self.on_leave(bucket)

    def finish(self) -> None:
        """Everything has left: free what it took on the device."""
        while self._leaving:
            self._free(self._leaving.popleft())

    def forget(self) -> None:
        """The gradients of this step are of no use any more."""
        self.finish()
        for bucket in self._buckets:
            assert bucket.host is not None
            bucket.host.arrived = None

    def norm(self, bucket: Bucket) -> torch.Tensor:
        """The L2 norm of a bucket that has left: an fp32 scalar on the device."""
        assert bucket.host is not None
        if bucket.host.edited:
            norm: torch.Tensor = torch.linalg.vector_norm(bucket.host.grad, dtype=torch.float32)
            return norm.to(self._norms.device)
        return self._norms[self._numbers[id(bucket)]]

    def _free(self, bucket: Bucket) -> None:
        assert bucket.host is not None
        assert bucket.host.arrived is not None
        bucket.host.arrived.wait()
        bucket.free_grads()
