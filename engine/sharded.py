"""Parameters of which a rank keeps its own shard only (stage 3): gathered before use, released after it.

Legend: `P` elements of a bucket, `S` = P / W elements of this rank's shard, `W` data-parallel ranks.
[Note: storage of gathered parameters] `params` [P] is one tensor for the bucket's whole life; releasing
empties its storage, gathering fills it again. Autograd may have saved views of it (a transposed weight):
they see the new values, and hold no memory meanwhile. A released member's own `.data` is a tensor of shape
[0], so that whoever touches it gets an error and not freed memory. Allocation, use and release all happen on
the compute stream, and the collective's stream waits for what was enqueued before it: no record_stream.
A trained bucket's shard is in the compute dtype, one half of its master; a whole master is the shard itself,
of which a gather casts a copy. Nothing is kept twice.
Shards that are offloaded live in pinned memory of the host and come by a lane of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch

from dslaunch.engine import collectives
from dslaunch.engine.buckets import Bucket, Sharding, flatten, home_of, settle
from dslaunch.engine.collectives import Pending
from dslaunch.engine.errors import EngineError
from dslaunch.engine.host_memory import host_empty, pinned_empty
from dslaunch.engine.lanes import Lane, Mark, Waitable
from dslaunch.engine.layout import BucketSpec
from dslaunch.engine.zeropp import Node, gather_quantized


class ZeroParamStatus(Enum):
    """Where the whole of a sharded parameter is; DeepSpeed's names."""

    AVAILABLE = 1  # gathered: `gather` has moved it here
    NOT_AVAILABLE = 2  # only the ranks' shards exist: `release`
    INFLIGHT = 3  # being gathered: `start_gather`


@dataclass(slots=True, eq=False)
class ShardedBucket(Bucket):
    """A bucket whose parameters exist as shards, and whole only while gathered."""

    views: tuple[torch.Tensor, ...] = ()  # the members in `params`
    empty: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # what released members point at
    status: ZeroParamStatus = ZeroParamStatus.AVAILABLE
    pending: Waitable | None = None
    lane: Lane | None = None  # what brings the shard to the device; None: it is there
    version: int = 0  # of `params`, for autograd
    num_holders: int = 0  # GatheredParameters contexts that keep it gathered
    in_use: bool = False  # by the pass that is under way
    node: Node | None = None  # hpZ: the ranks that hold a second shard together
    second: torch.Tensor | None = None  # [P / node.size] of this rank, of this pass
    quantizes: bool = False  # qwZ: what is only computed with may be rounded
    rounded: bool = False  # it is

    def start_gather(self, exact: bool = True) -> None:
        """Start the all-gather unless the parameters are here or on their way; not `exact`: see zeropp."""
        if exact and self.rounded and not self.num_holders:
            self.release()
        if self.status is not ZeroParamStatus.NOT_AVAILABLE:
            return
        self.finish_stepping()
        if self.param_shard.untyped_storage().size() == 0:
            raise EngineError(
                f"{self.spec.slots[0].name} cannot be gathered while lp_params are offloaded",
                "call engine.reload_states() first",
            )
        self.rounded = self.quantizes and not exact
        self.params.untyped_storage().resize_(self.params.numel() * self.params.element_size())
        if self.second is not None and self.node is not None and self.rounded == self.quantizes:
            self.pending = collectives.all_gather(self.params, self.second, self.node.group)
        elif self.lane is not None:
            self.pending = self._start_fetch(self.lane)
        elif collectives.num_ranks() == 1:
            self.params.copy_(self.param_shard)
        elif self.rounded:
            self.pending = gather_quantized(self.params, self.param_shard)
        else:
            own = self.param_shard
            if own.dtype != self.params.dtype:
                own = self.params[self.own].copy_(own)
            self.pending = collectives.all_gather(self.params, own)
        self._mark(ZeroParamStatus.INFLIGHT)

    def gather(self, exact: bool = True) -> None:
        """Have the whole parameters here; the current stream waits for them."""
        self.start_gather(exact)
        if self.status is ZeroParamStatus.AVAILABLE:
            return
        if self.pending is not None:
            try:
                self.pending.wait()
            except RuntimeError as error:
                raise EngineError(
                    f"gathering {self.spec.slots[0].name} failed: {str(error).splitlines()[0]}",
                    "see what the other ranks say: all must run the same modules in the same order",
                ) from error
            self.pending = None
        # To autograd nothing has changed: the values are those it saved.
        torch._C._autograd._unsafe_set_version_counter((self.params,), (self.version,))
        for param, view in zip(self.members, self.views, strict=True):
            param.data = view
        self._mark(ZeroParamStatus.AVAILABLE)

    def release(self) -> None:
        """Give the memory of the whole parameters back; edits made to them are lost."""
        if self.num_holders or self.status is ZeroParamStatus.NOT_AVAILABLE:
            return
        if self.pending is not None:
            self.pending.wait()
            self.pending = None
        for param in self.members:
            param.data = self.empty
        self.params.untyped_storage().resize_(0)
        self.rounded = False
        self._mark(ZeroParamStatus.NOT_AVAILABLE)

    def let_go(self) -> None:
        """Release unless the pass that is under way goes on with it."""
        if not self.in_use:
            self.release()

    def keep_second(self) -> None:
        """hpZ: keep this rank's part of the node's copy of what is gathered."""
        if self.node is not None and self.second is None:
            own = self.spec.shard(self.node.size, self.node.index)
            self.second = self.params[own.start : own.stop].clone()

    def keep_member(self, index: int) -> None:
        """Take this rank's part of member `index` into the shard and its master, after it was edited."""
        Bucket.keep_member(self, index)
        self.second = None

    def _start_fetch(self, lane: Lane) -> Waitable:
        """Bring the shard to the device beside the compute, then gather from there."""
        own, gathering = self.params[self.own], list[Pending]()

        def fetch() -> None:
            own.copy_(self.param_shard, non_blocking=True)
            if collectives.num_ranks() > 1:
                gathering.append(collectives.all_gather(self.params, own))

        # What compute has been told so far includes whatever used this memory before.
        mark = lane.run(fetch, lane.fence())
        return _Fetch(mark, gathering)

    def _mark(self, status: ZeroParamStatus) -> None:
        self.status = status
        for param in self.members:
            param.ds_status = status  # type: ignore[attr-defined]


class _Fetch(NamedTuple):
    """A shard on its way to the device, and the gather that starts from there."""

    mark: Mark
    gathering: list[Pending]  # empty on one rank, and while a lazy lane has not run

    def wait(self) -> None:
        self.mark.wait()
        for pending in self.gathering:
            pending.wait()


@dataclass(frozen=True, slots=True)
class HostHome:
    """Where the shards of parameters live that are offloaded."""

    lane: Lane
    pin: bool


def build_sharded(
    spec: BucketSpec,
    members: Sequence[torch.nn.Parameter],
    sharding: Sharding,
    device: torch.device,
    grad_dtype: torch.dtype | None,
    host_home: HostHome | None = None,
    masters: bool = False,
) -> ShardedBucket:
    """Shard the members (whole, or sharded by zero.Init) with rank 0's values; `grad_dtype` None: frozen.

    `masters`: shards of trained parameters are in fp32, masters and all, and are cast when gathered.

    Collective. No more than this one bucket and one of its members are whole at any time.
    """
    params, views, shapes = flatten(spec, members, device)
    own = spec.shard(sharding.num_shards, sharding.index)
    where = slice(own.start, own.stop)
    shard = params[where].clone() if host_home is None else _on_host(params[where], host_home)
    if masters and grad_dtype is not None:
        shard = shard.float()
    bucket = ShardedBucket(
        spec, tuple(members), shapes, where, params, shard, views=views, empty=params.new_empty(0)
    )
    bucket.lane = None if host_home is None else host_home.lane
    if grad_dtype is not None:
        bucket.grad_shard = torch.zeros(len(own), dtype=grad_dtype, device=device)
    settle(bucket)
    for param in members:
        give_surface(param)
    bucket.version = params._version
    bucket.release()
    return bucket


def _on_host(shard: torch.Tensor, host_home: HostHome) -> torch.Tensor:
    new = pinned_empty if host_home.pin else host_empty
    return new(shard.numel(), shard.dtype).copy_(shard)


def sharded_bucket_of(param: torch.Tensor) -> ShardedBucket | None:
    """The sharded bucket `param` lives in; None for whole parameters."""
    home = home_of(param)
    return home.bucket if home is not None and isinstance(home.bucket, ShardedBucket) else None


_ids = itertools.count(1)


def give_surface(param: torch.nn.Parameter) -> None:
    """Hang DeepSpeed's attributes on a parameter, sharded or whole: what Hugging Face and TRL read."""
    home = home_of(param)
    sharded = sharded_bucket_of(param)
    shape = param.shape if home is None else home.shape
    part = param.data.view(-1) if home is None else home.bucket.param_shard[home.bucket.parts(home.index)[0]]
    surface: dict[str, object] = {
        "ds_id": getattr(param, "ds_id", None) or next(_ids),
        "ds_shape": shape,
        "ds_numel": shape.numel(),
        "ds_tensor": part,
        "ds_status": ZeroParamStatus.AVAILABLE if sharded is None else sharded.status,
        "ds_persist": sharded is None,
        "ds_process_group": None,  # a group kept here would outlive the job
        "ds_zero_param_process_group": None,
        "ds_active_sub_modules": set(),
        "ds_external": False,
        "all_gather": _nothing if sharded is None else lambda *_, **__: sharded.gather(),
        "partition": _nothing if sharded is None else lambda *_, **__: sharded.release(),
        "partition_numel": part.numel,
        "padding_size": lambda: 0,
        "ds_summary": lambda: f"{tuple(shape)} {getattr(param, 'ds_status', None)}",
        "convert_to_zero_parameters": _nothing,
    }
    for name, value in surface.items():
        setattr(param, name, value)


def _nothing(*_: object, **__: object) -> None:
    """What a whole parameter does when it is asked to gather or to part."""
