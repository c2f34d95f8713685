"""Averaging gradients over ranks, bucket by bucket, while backward still runs.

Every parameter has a post-accumulate-grad hook that counts down its bucket. On the last micro step of an
optimizer step (`armed`) a full bucket is sent off at once, provided all buckets before it are: ranks that
differ in which parameters they use still issue the same collectives in the same order. `finish` sends what
hooks did not (unused parameters) and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dslaunch.engine import collectives
from dslaunch.engine.buckets import Bucket, Sharding
from dslaunch.engine.collectives import Pending
from dslaunch.engine.errors import EngineError


class Reducer:
    """Owns the hooks and the collectives in flight. Without `overlap` no bucket leaves before `finish`."""

    def __init__(self, buckets: Sequence[Bucket], sharding: Sharding, num_ranks: int, overlap: bool) -> None:
        self.armed = False  # the engine sets it: the next backward is the last of this optimizer step
        self._buckets = buckets
        self._num_ranks = num_ranks
        self._sharded = sharding.num_shards > 1
        self._overlap = overlap and num_ranks > 1
        self._missing = [len(bucket.members) for bucket in buckets]
        self._in_flight: list[Pending] = []  # of buckets [0, len)
        self._handles = [
            param.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._hook(number, index)
            )
            for number, bucket in enumerate(buckets)
            for index, param in enumerate(bucket.members)
            if self._overlap or not bucket.grads_in_place
        ]

    @property
    def has_sent(self) -> bool:
        """Whether some bucket of this optimizer step has already been reduced or is being reduced."""
        return bool(self._in_flight)

    def finish(self) -> None:
        """Average everything that is left and wait for all of it; then `Bucket.grad_shard` holds the mean."""
        for bucket in self._buckets:
            bucket.check_in_place()
        for bucket in self._buckets[len(self._in_flight) :]:
            bucket.adopt_gradients()
            if self._num_ranks > 1:
                self._in_flight.append(self._send(bucket))
        for pending in self._in_flight:
            pending.wait()

    def reset(self) -> None:
        """Forget the finished step."""
        self._in_flight.clear()
        self._missing = [len(bucket.members) for bucket in self._buckets]

    def _hook(self, number: int, index: int) -> Callable[[torch.Tensor], None]:
        bucket = self._buckets[number]

        def ready(_: torch.Tensor) -> None:
            if number < len(self._in_flight):
                raise _arrived_twice(bucket.spec.slots[index].name)
            bucket.adopt_gradient(index)
            if self.armed and self._overlap:
                self._missing[number] -= 1
                if self._missing[number] == 0:
                    self._send_ready()

        return ready

    def _send_ready(self) -> None:
        while len(self._in_flight) < len(self._buckets) and self._missing[len(self._in_flight)] <= 0:
            self._in_flight.append(self._send(self._buckets[len(self._in_flight)]))

    def _send(self, bucket: Bucket) -> Pending:
        if self._sharded:
            return collectives.reduce_scatter_mean(bucket.grads, bucket.grad_shard)
        return collectives.all_reduce_mean(bucket.grads)


def _arrived_twice(name: str) -> EngineError:
    return EngineError(
        f"the gradient of {name} arrived again after its bucket had been averaged over the ranks",
        "call backward once per step on the sum of losses, or set zero_optimization.overlap_comm to false",
    )
