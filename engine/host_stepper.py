"""Optimizer steps on the host, bucket by bucket, and the parameters' way back while the next one is stepped.

Legend: `S` elements of this rank's shard of a bucket.
One thread steps all buckets, so that there is one team of cores. A step reads the gradient where it has
arrived and writes the rounded parameters in the same pass: into one of two pinned buffers [S], from which a
lane copies them to the device, or where shards live on the host anyway, into the shard.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from dslaunch.engine.buckets import Bucket
from dslaunch.engine.host_memory import host_empty, pinned_empty
from dslaunch.engine.lanes import Lane, Mark
from dslaunch.engine.ops.shard import Rule, Shard
from dslaunch.engine.optimizer_rules import step_shards_
from dslaunch.engine.optimizer_torch import TorchStep

_NUM_BUFFERS = 2
_FEW_CORES = 4


@dataclass(slots=True)
class _Buffer:
    memory: torch.Tensor  # [largest S] of its dtype
    sent: Mark | None = None  # the last copy out of it


class HostStepper:
    """Owns the thread, the lane back and the buffers."""

    def __init__(self, buckets: Sequence[Bucket], lane: Lane, pin: bool) -> None:
        self._lane = lane
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dslaunch-offload")
        self._under_way: dict[int, Future[Mark | None]] = {}
        self._num_threads = num_step_threads()
        sizes: dict[torch.dtype, int] = {}
        for bucket in buckets:
            if not bucket.is_kept_on_host:
                shard = bucket.param_shard
                sizes[shard.dtype] = max(sizes.get(shard.dtype, 0), shard.numel())
        new = pinned_empty if pin else host_empty
        self._buffers = {
            dtype: [_Buffer(new(size, dtype)) for _ in range(_NUM_BUFFERS)] for dtype, size in sizes.items()
        }
        self._num_stepped = 0

    @property
    def has_begun(self) -> bool:
        """Whether buckets have been or are being stepped that have not been published."""
        return bool(self._under_way)

    def begin(self, bucket: Bucket, rule: Rule | TorchStep, grad_scale: torch.Tensor | None) -> None:
        """Step `bucket` as soon as its gradient is there; compute must be done with its parameters.

        `grad_scale` is on the host. Nothing where the bucket has begun already.
        """
        if id(bucket) not in self._under_way:
            fence = self._lane.fence()
            self._under_way[id(bucket)] = self._pool.submit(self._step, bucket, rule, grad_scale, fence)

    def publish(self, bucket: Bucket) -> None:
        """Wait until `bucket` is stepped; compute waits for its parameters. Raises what the step raised."""
        if (arriving := self._under_way.pop(id(bucket)).result()) is not None:
            arriving.wait()

    @torch.no_grad()
    def _step(
        self, bucket: Bucket, rule: Rule | TorchStep, grad_scale: torch.Tensor | None, fence: Mark
    ) -> Mark | None:
        host, state, shard = bucket.host, bucket.state, bucket.param_shard
        assert host is not None
        assert host.arrived is not None
        assert state is not None
        host.arrived.join()
        low = shard.dtype != state.master.dtype
        buffer = None if bucket.is_kept_on_host else self._next_buffer(shard.dtype)
        out = shard if buffer is None else buffer.memory[: shard.numel()]
        stepped = Shard(state.master, tuple(state.states.values()), host.grad, out if low else None)
        step_shards_(rule, [stepped], grad_scale, num_threads=self._num_threads)
        if buffer is None:
            return None
        if not low:
            out.copy_(state.master)
        buffer.sent = self._lane.run(lambda: shard.copy_(out, non_blocking=True), fence)
        return buffer.sent

    def _next_buffer(self, dtype: torch.dtype) -> _Buffer:
        """The one that was used longest ago, when it has been read."""
        buffer = self._buffers[dtype][self._num_stepped % _NUM_BUFFERS]
        self._num_stepped += 1
        if buffer.sent is not None:
            buffer.sent.join()
        return buffer


def num_step_threads() -> int:
    """OMP_NUM_THREADS above 1; else this rank's share of the cores, of which it leaves some to Python.

    Launchers set OMP_NUM_THREADS to 1 where nobody has chosen, so 1 says nothing.
    """
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 1:
        return int(chosen)
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = max(1, num_cores // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    return own if own <= _FEW_CORES else own - 1
