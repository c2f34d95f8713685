"""Flat buffers: a model's parameters as views into buckets.

Legend: `P` elements of a bucket, `S` = P / W elements of this rank's shard, `W` shards (the ranks, or one
where nothing is sharded). `param.data` is a view into `Bucket.params`, the output of one all-gather; where
gradients are whole, `param.grad` is a view into `Bucket.grads`, the input of one reduce-scatter. Nothing is
copied between backward, the collectives and the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dslaunch.engine import collectives
from dslaunch.engine.errors import EngineError
from dslaunch.engine.lanes import Mark, Waitable
from dslaunch.engine.layout import BucketSpec
from dslaunch.engine.masters import Master


@dataclass(frozen=True, slots=True)
class Sharding:
    """How many shards every bucket has and which one this rank steps; stage 0 has one shard, held by all."""

    num_shards: int
    index: int
    gradients: bool = False  # whether a rank keeps the gradients of its shard only (stages 2 and 3)


@dataclass(slots=True, eq=False)
class ShardState:
    """The optimizer state of one bucket on this rank."""

    master: Master
    states: dict[str, torch.Tensor]  # [S] each, by name: exp_avg, ...; which ones, the rule decides
    starts: dict[str, float]  # what each of them starts from
    readers: tuple[Waitable, ...] = ()  # snapshots that are being taken of it

    @property
    def kinds(self) -> tuple[str, ...]:
        """All that can be read and written."""
        return ("master", *self.states)

    def read(self, kind: str, part: slice) -> torch.Tensor:
        """Elements of the master in fp32, or of the state of that name as kept; a view where they lie so."""
        return self.master.values(part) if kind == "master" else self.states[kind][part]

    @torch.no_grad()
    def write(self, kind: str, values: torch.Tensor, part: slice) -> None:
        """Set elements of the master, or of the state of that name."""
        self.claim()
        if kind == "master":
            self.master.write(values, part)
        else:
            self.states[kind][part].copy_(values)

    def claim(self) -> None:
        """Wait for `readers`: to be called before each change. See checkpoint_snapshot.py."""
        for reader in self.readers:
            reader.wait()
        self.readers = ()

    def restart(self) -> None:
        """Forget what the states have learned."""
        self.claim()
        for name, state in self.states.items():
            state.fill_(self.starts[name])


@dataclass(slots=True, eq=False)
class HostGrad:
    """Where a bucket's mean gradient goes that the host steps."""

    grad: torch.Tensor  # [S] accumulation dtype, pinned
    arrived: Mark | None = None  # of this step's mean; None while it has not left
    edited: bool = False  # on the host, since the norm was taken


@dataclass(slots=True, eq=False)
class Bucket:
    """The tensors of one bucket."""

    spec: BucketSpec
    members: tuple[torch.nn.Parameter, ...]  # in slot order
    shapes: tuple[torch.Size, ...]  # of the members
    own: slice  # this rank's shard of the bucket
    params: torch.Tensor  # [P] compute dtype
    param_shard: torch.Tensor  # [S] this rank's parameters
    grads: torch.Tensor | None = None  # [P] accumulation dtype, where every rank keeps all gradients
    grad_views: tuple[torch.Tensor, ...] = ()  # [shape of the member] each, into grads
    grad_shard: torch.Tensor | None = None  # [S] the mean over ranks once reduced; None: not trained
    _state: ShardState | None = None  # None: not trained
    host: HostGrad | None = None  # None: stepped on its own device
    owner: object = None  # the optimizer that steps it
    stepping: Waitable | None = None  # by the host, beside everything else

    @property
    def state(self) -> ShardState | None:
        """Masters and states, once they are stepped; None: not trained."""
        self.finish_stepping()
        return self._state

    @state.setter
    def state(self, state: ShardState | None) -> None:
        self._state = state

    def finish_stepping(self) -> None:
        """Wait until the host has stepped it; compute waits for the parameters. Raises what the step did."""
        if self.stepping is not None:
            stepping, self.stepping = self.stepping, None
            stepping.wait()

    @property
    def grads_in_place(self) -> bool:
        """Whether autograd accumulates into the bucket itself; not so where the dtypes differ."""
        return self.grads is not None and self.grads.dtype == self.params.dtype

    @property
    def is_kept_on_host(self) -> bool:
        """Whether the parameters' shard lives on the host, and only whole parameters on the device."""
        return self.param_shard.device != self.params.device

    @property
    def mean_grad(self) -> torch.Tensor:
        """[S] the mean over ranks, once reduced; on the host where it has gone there."""
        if self.host is not None and self.host.arrived is not None:
            self.host.arrived.join()
            return self.host.grad
        assert self.grad_shard is not None
        return self.grad_shard

    def hold_grads(self) -> None:
        """Have memory for the gradients, whatever is in it."""
        grads = self.grads if self.grads is not None else self.grad_shard
        assert grads is not None
        num_bytes = grads.numel() * grads.element_size()
        if grads.untyped_storage().size() != num_bytes:
            grads.untyped_storage().resize_(num_bytes)

    def free_grads(self) -> None:
        """Give the memory of the gradients back until they are held again; they are lost."""
        for param in self.members:
            param.grad = None
        grads = self.grads if self.grads is not None else self.grad_shard
        assert grads is not None
        grads.untyped_storage().resize_(0)

    def parts(self, index: int) -> tuple[slice, slice]:
        """Where member `index` and this rank's shard meet: in the shard [S], and in the flattened member."""
        slot = self.spec.slots[index]
        low = max(slot.offset, self.own.start)
        high = max(min(slot.offset + slot.numel, self.own.stop), low)
        return slice(low - self.own.start, high - self.own.start), slice(
            low - slot.offset, high - slot.offset
        )

    def claim(self) -> None:
        """To be called before each change of the shard or its state."""
        if self.state is not None:
            self.state.claim()

    def gather(self) -> None:
        """Have the whole parameters here; a resident bucket has."""

    def release(self) -> None:
        """Give the memory of the whole parameters back, if they are sharded."""

    def check_in_place(self) -> None:
        """EngineError if the module was cast or moved, which takes the parameters out of the bucket."""
        if self.members[0].untyped_storage().data_ptr() != self.params.untyped_storage().data_ptr():
            raise EngineError(
                f"parameter {self.spec.slots[0].name} has left its flat buffer",
                "do not move, cast or reassign parameters after initialize",
            )

    def keep_member(self, index: int) -> None:
        """Take this rank's part of member `index` into the shard and its master, after it was edited."""
        self.finish_stepping()
        part, of_member = self.parts(index)
        written = self.members[index].data.view(-1)[of_member]
        self.claim()
        self.param_shard[part].copy_(written)
        if self.state is not None:
            self.state.master.refresh(part)

    def refresh_master(self) -> None:
        """Take the master anew from the parameters, after something else has written those."""
        if self.state is not None:
            self.state.claim()
            self.state.master.refresh()


@dataclass(frozen=True, slots=True, eq=False)
class Home:
    """Where a parameter lives; hangs on the parameter itself as `_ds_home`."""

    bucket: Bucket
    index: int

    @property
    def name(self) -> str:
        """The parameter's name in the model."""
        return self.bucket.spec.slots[self.index].name

    @property
    def shape(self) -> torch.Size:
        """The whole parameter's shape, also while it is not gathered."""
        return self.bucket.shapes[self.index]


def home_of(param: torch.Tensor) -> Home | None:
    """Where `param` lives; None for a parameter that no engine and no zero.Init holds."""
    home = getattr(param, "_ds_home", None)
    return home if isinstance(home, Home) else None


def shape_of(param: torch.Tensor) -> torch.Size:
    """The whole parameter's shape, also while it is not gathered."""
    home = home_of(param)
    return param.shape if home is None else home.shape


def build_resident(
    spec: BucketSpec,
    members: Sequence[torch.nn.Parameter],
    sharding: Sharding,
    device: torch.device,
    grad_dtype: torch.dtype,
) -> Bucket:
    """A bucket that is whole on every rank; gradients too, unless `sharding` says otherwise."""
    params, views, shapes = flatten(spec, members, device)
    for param, view in zip(members, views, strict=True):
        param.data = view
    own = spec.shard(sharding.num_shards, sharding.index)
    where = slice(own.start, own.stop)
    bucket = Bucket(spec, tuple(members), shapes, where, params, params[where])
    if sharding.gradients:
        bucket.grad_shard = torch.zeros(len(own), dtype=grad_dtype, device=device)
    else:
        bucket.grads = torch.zeros(spec.numel, dtype=grad_dtype, device=device)
        bucket.grad_views = member_views(spec, bucket.grads, shapes)
        bucket.grad_shard = bucket.grads[where]
    settle(bucket)
    return bucket


def flatten(
    spec: BucketSpec, members: Sequence[torch.nn.Parameter], device: torch.device
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], tuple[torch.Size, ...]]:
    """A new flat buffer [P] with rank 0's values of the members, its views, and the members' shapes."""
    shapes = tuple(shape_of(param) for param in members)
    params = torch.zeros(spec.numel, dtype=getattr(torch, spec.dtype), device=device)
    views = member_views(spec, params, shapes)
    for param, view in zip(members, views, strict=True):
        home = home_of(param)
        if home is not None:
            home.bucket.gather()
        view.copy_(param.detach())
        if home is not None:
            home.bucket.release()
    collectives.broadcast(params)
    return params, views, shapes


def member_views(
    spec: BucketSpec, flat: torch.Tensor, shapes: Sequence[torch.Size]
) -> tuple[torch.Tensor, ...]:
    """The members [shape] as views into `flat` [P]."""
    return tuple(
        flat[slot.offset : slot.offset + slot.numel].view(shape)
        for slot, shape in zip(spec.slots, shapes, strict=True)
    )


def settle(bucket: Bucket) -> None:
    """Tell the members where they live."""
    for index, param in enumerate(bucket.members):
        param._ds_home = Home(bucket, index)  # type: ignore[attr-defined]
