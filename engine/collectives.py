"""The collectives the engine uses, the same on every backend and torch version. `P` bucket elements, `W`
ranks, `S` = P / W.

Buckets are the buffers themselves: rank r's shard of a bucket is `bucket[r * S : (r + 1) * S]`, reduced
into and gathered from in place. gloo has no AVG, so there the sum is divided after it has arrived, on the
elements that are kept only. torch 2.13 renamed `*_tensor` to `*_single`; both names are looked up once
here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
import torch.distributed as dist

from dslaunch.engine.comms_log import logged

_GLOO_BYTES = 1 << 21  # of a bucket that gloo gathers at once

_Collective = Callable[..., "dist.Work | None"]


def _newest(*names: str) -> _Collective:
    return cast(_Collective, next(getattr(dist, name) for name in names if hasattr(dist, name)))


reduce_scatter_flat = _newest("reduce_scatter_single", "reduce_scatter_tensor")
all_gather_flat = _newest("all_gather_single", "all_gather_into_tensor")


class _Works(NamedTuple):
    """Collectives in flight."""

    works: list[dist.Work]

    def wait(self) -> None:
        for work in self.works:
            work.wait()


class Pending(NamedTuple):
    """A collective in flight and the division that makes a sum a mean once it has arrived."""

    work: dist.Work | _Works
    divide: torch.Tensor | None  # [S] or [P]: what to divide in place, None where the backend has averaged
    num_ranks: int

    def wait(self) -> None:
        """Make the current stream (or the CPU) wait for the result."""
        self.work.wait()
        if self.divide is not None:
            self.divide.div_(self.num_ranks)


@logged("all_reduce")
def all_reduce(bucket: torch.Tensor, mean: bool = True) -> Pending:
    """Start averaging (or adding up) `bucket` [P] over all ranks, in place."""
    averages = mean and _averages(bucket)
    work = dist.all_reduce(bucket, op=dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM, async_op=True)
    assert work is not None
    return Pending(work, bucket if mean and not averages else None, dist.get_world_size())


@logged("reduce_scatter")
def reduce_scatter(bucket: torch.Tensor, shard: torch.Tensor, mean: bool = True) -> Pending:
    """Start averaging (or adding up) `bucket` [P] into `shard` [S], this rank's part; the rest is lost."""
    averages = mean and _averages(bucket)
    operation = dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM
    try:
        work = reduce_scatter_flat(shard, bucket, op=operation, async_op=True)
    except (RuntimeError, NotImplementedError) as error:
        # gloo before torch 2.10 refuses some dtypes or the call as a whole, on every rank alike, before it
        # sends anything
        if averages or "support" not in str(error).lower():
            raise
        work = dist.all_reduce(bucket, op=operation, async_op=True)
    assert work is not None
    return Pending(work, shard if mean and not averages else None, dist.get_world_size())


@logged("all_gather")
def all_gather(bucket: torch.Tensor, shard: torch.Tensor, group: dist.ProcessGroup | None = None) -> Pending:
    """Start filling `bucket` [P] from every rank's `shard` [S], its part of it; `group` None: all of them."""
    step = max(1, _GLOO_BYTES * shard.numel() // max(1, bucket.nbytes))
    if not shard.is_cuda and bucket.nbytes > _GLOO_BYTES:
        return Pending(_in_pieces(bucket, shard, step, group), None, dist.get_world_size())
    work = all_gather_flat(bucket, shard, group=group, async_op=True)
    assert work is not None
    return Pending(work, None, dist.get_world_size())


def _in_pieces(
    bucket: torch.Tensor, shard: torch.Tensor, step: int, group: dist.ProcessGroup | None
) -> _Works:
    """gloo gathers into memory of its own first, as much as it is given at once: slow to get, too."""
    parts = bucket.view(-1, shard.numel())
    works = [
        dist.all_gather(list(parts[:, at : at + step]), shard[at : at + step], group=group, async_op=True)
        for at in range(0, shard.numel(), step)
    ]
    return _Works([work for work in works if work is not None])


@logged("all_reduce")
def all_reduce_sum(value: torch.Tensor) -> None:
    """Sum a small tensor over all ranks, in place."""
    dist.all_reduce(value)


@logged("broadcast")
def broadcast(tensor: torch.Tensor, source: int = 0) -> None:
    """Give every rank rank `source`'s `tensor`, in place."""
    if num_ranks() > 1:
        dist.broadcast(tensor, src=source)


def num_ranks() -> int:
    """How many ranks train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def agree(values: list[int], device: torch.device) -> bool:
    """Whether every rank passed the same `values` (each below 2**62)."""
    both = torch.tensor([values, [-value for value in values]], dtype=torch.int64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return bool((both[0] == -both[1]).all())


def _averages(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and "nccl" in str(dist.get_backend_config())
