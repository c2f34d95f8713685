"""Optimizer steps on the host, bucket by bucket, and the parameters' way back while the next one is stepped.

Legend: `S` elements of this rank's shard of a bucket.
One thread steps all buckets, so that there is one team of cores. A step reads the gradient where it has
arrived and writes the rounded parameters in the same pass: into one of two pinned buffers [S], from which a
lane copies them to the device, or where shards live on the host anyway, into the shard.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from dslaunch.engine.buckets import Bucket, ShardState
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


@dataclass(frozen=True, slots=True)
class _Job:
    """A bucket to step, as it is when that is asked for."""

    bucket: Bucket
    state: ShardState
    arrived: Mark  # the gradient
    rule: Rule | TorchStep
    grad_scale: torch.Tensor | None
    fence: Mark  # until then compute may read the parameters
    stepped: Future[Mark | None]  # the parameters' way back; None: they live on the host


@dataclass(frozen=True, slots=True)
class Stepping:
    """A bucket that is being stepped beside everything else."""

    _stepped: Future[Mark | None]

    def wait(self) -> None:
        """Return when it is stepped; compute waits for the parameters. Raises what the step raised."""
        if (arriving := self._stepped.result()) is not None:
            arriving.wait()


class HostStepper:
    """Owns the thread, the lane back and the buffers."""

    def __init__(self, buckets: Sequence[Bucket], lane: Lane, pin: bool) -> None:
        self._lane = lane
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dslaunch-offload")
        self._waiting: deque[_Job] = deque()
        self._under_way: dict[int, Stepping] = {}
        # The first blocks' gradients come last; a forward that waits block by block wants them stepped first.
        self.newest_first = False
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
            state, host = bucket.state, bucket.host
            assert state is not None
            assert host is not None
            assert host.arrived is not None
            stepped: Future[Mark | None] = Future()
            job = _Job(bucket, state, host.arrived, rule, grad_scale, self._lane.fence(), stepped)
            self._waiting.append(job)
            self._under_way[id(bucket)] = Stepping(stepped)
            self._pool.submit(self._work)

    def publish(self, bucket: Bucket) -> None:
        """Wait until `bucket` is stepped; compute waits for its parameters. Raises what the step raised."""
        self._under_way.pop(id(bucket)).wait()

    def hand_over(self, bucket: Bucket) -> Stepping:
        """What was begun with `bucket`, for somebody else to wait for; whoever reads its state waits too."""
        bucket.stepping = self._under_way.pop(id(bucket))
        return bucket.stepping

    def _work(self) -> None:
        job = self._waiting.pop() if self.newest_first else self._waiting.popleft()
        try:
            job.stepped.set_result(self._step(job))
        except BaseException as error:  # whoever waits raises it
            job.stepped.set_exception(error)

    @torch.no_grad()
    def _step(self, job: _Job) -> Mark | None:
        bucket, state = job.bucket, job.state
        host, shard = bucket.host, bucket.param_shard
        assert host is not None
        job.arrived.join()
        state.claim()
        master = state.master.kept  # the host's are whole
        low = shard.dtype != master.dtype
        buffer = None if bucket.is_kept_on_host else self._next_buffer(shard.dtype)
        out = shard if buffer is None else buffer.memory[: shard.numel()]
        states, number = tuple(state.states.values()), bucket.spec.index
        stepped = Shard(master, states, host.grad, out if low else None, bucket.own.start, number)
        step_shards_(job.rule, [stepped], job.grad_scale, num_threads=self._num_threads)
        if buffer is None:
            return None
        if not low:
            out.copy_(master)
        buffer.sent = self._lane.run(lambda: shard.copy_(out, non_blocking=True), job.fence)
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
