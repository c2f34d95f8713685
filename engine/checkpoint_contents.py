"""What a rank writes: views of the engine's state, and their description in the manifest. Nothing is copied.

Every bucket is cut into one part for each rank, the shards where it is sharded (see `layout.even_part`).
What no bucket holds is stored whole: buffers by rank 0, frozen parameters shared out among the ranks.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from dslaunch.engine import checkpoint_manifest as manifests
from dslaunch.engine.buckets import Bucket, ShardState, home_of
from dslaunch.engine.checkpoint_manifest import FROZEN, PARAM, Counters, Manifest, ParamEntry, WholeEntry
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.layout import even_part, pieces_of
from dslaunch.engine.lr_schedules import LrScheduler
from dslaunch.engine.masters import Master
from dslaunch.engine.optimizer import ShardedOptimizer
from dslaunch.engine.tensor_files import Deferred, can_hold

if TYPE_CHECKING:
    from dslaunch.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint before it is written; of `manifest` only `files` and the time are missing."""

    tensors: Mapping[str, torch.Tensor | Deferred]  # this rank's, as they lie in the engine
    states: Mapping[str, ShardState]  # of those tensors that nobody changes who has not claimed it, which
    state: bytes | None  # rank 0's: what is not tensors of the model
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class What:
    """What a checkpoint is called, and what goes in beside and instead of the engine's state."""

    tag: str
    client_state: Mapping[str, object]
    exclude_frozen: bool


def collect(engine: Engine, what: What) -> Contents:
    """The engine's state as it is now; CheckpointError where the client state cannot be read back safely."""
    rank, world = engine.global_rank, engine.world_size
    tensors: dict[str, torch.Tensor | Deferred] = {}
    states: dict[str, ShardState] = {}
    params: dict[str, ParamEntry] = {}
    for name, bucket in _buckets(engine, what.exclude_frozen):
        if bucket.spec.numel:
            tensors |= {f"{name}.{kind}": part for kind, part in _parts(bucket, world, rank).items()}
            if (state := bucket.state) is not None:
                claimed = [kind for kind in state.kinds if kind != "master" or not _shows_master(bucket)]
                states |= {f"{name}.{kind}": state for kind in claimed}
        pieces = pieces_of(bucket.spec, name, world)
        group = FROZEN if bucket.state is None else bucket.spec.group
        for slot, shape in zip(bucket.spec.slots, bucket.shapes, strict=True):
            params[slot.name] = ParamEntry(tuple(shape), bucket.spec.dtype, group, pieces[slot.name])
    params = {name: params[name] for name in (*_in_groups(engine.zero_optimizer), *params)}
    loose, extra = _loose(engine.module, what.exclude_frozen)
    whole = _share_out(engine.module, loose, world)
    for name, entry in whole.items():
        if entry.file == rank:
            tensors[manifests.whole_tensor(name)] = loose[name]
    optimizer = engine.zero_optimizer
    rest = None
    if rank == 0:
        rest = _safe_pickle(
            {
                "client_state": dict(what.client_state),
                "loss_scaler": None if optimizer is None else optimizer.scaler_state(),
                "lr_scheduler": _scheduler_state(engine.lr_scheduler),
                "module_extra": extra,
            }
        )
    manifest = Manifest(
        tag=what.tag,
        saved_at=0.0,
        world_size=world,
        zero_stage=engine.zero_optimization_stage(),
        dtype=engine.settings.dtype,
        counters=Counters(
            engine.global_steps,
            engine.global_samples,
            engine.skipped_steps,
            0 if optimizer is None else optimizer.num_applied,
        ),
        shards=tuple(manifests.shard_name(index, world) for index in range(world)),
        params=params,
        whole=whole,
        aliases=tied_names(engine.module),
        param_groups=hyperparameters(optimizer),
        kinds=_kinds(optimizer),
        files={},
    )
    return Contents(tensors, states, rest, manifest)


def tied_names(module: torch.nn.Module) -> dict[str, str]:
    """State-dict names of parameters and buffers that are another name's tensor -> that name."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    everything = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in everything:
        if first.setdefault(id(tensor), name) != name:
            tied[name] = first[id(tensor)]
    return tied


def hyperparameters(optimizer: ShardedOptimizer | None) -> tuple[dict[str, object], ...]:
    """The parameter groups without their parameters, as JSON knows them."""
    plain = (int, float, str, bool, type(None), list, tuple)
    return tuple(
        {key: value for key, value in group.items() if key != "params" and isinstance(value, plain)}
        for group in ([] if optimizer is None else optimizer.param_groups)
    )


def _buckets(engine: Engine, exclude_frozen: bool) -> Iterator[tuple[str, Bucket]]:
    for number, bucket in enumerate(engine.placement.trained):
        yield f"bucket_{number:05d}", bucket
    for number, frozen in enumerate(engine.placement.frozen):
        kept = not exclude_frozen or any(param.requires_grad for param in frozen.members)
        if kept:
            yield f"frozen_{number:05d}", frozen


def _in_groups(optimizer: ShardedOptimizer | None) -> list[str]:
    """The trained parameters in the order of the groups, which DeepSpeed's files number them by."""
    groups = [] if optimizer is None else optimizer.param_groups
    homes = [home_of(param) for group in groups for param in group["params"]]
    return [home.name for home in homes if home is not None]


def _parts(bucket: Bucket, world: int, rank: int) -> dict[str, torch.Tensor | Deferred]:
    """The rank's even part of everything a bucket has, by kind."""
    part = even_part(bucket.spec.numel, world, rank)
    start = bucket.own.start  # the whole bucket's, where every rank has it all
    own = slice(part.start - start, part.stop - start)
    if bucket.state is None:
        return {PARAM: bucket.param_shard[own]}
    state = bucket.state
    return {
        kind: _master_of(state.master, own) if kind == "master" else state.read(kind, own)
        for kind in state.kinds
    }


def _master_of(master: Master, own: slice) -> torch.Tensor | Deferred:
    if not master.is_split:
        return master.values(own)
    numel = own.stop - own.start
    return Deferred(torch.float32, (numel,), partial(master.pieces, own), master.param.is_cuda)


def _shows_master(bucket: Bucket) -> bool:
    """Whether masters lie in parameters that the module shows, which a script may edit at any time."""
    assert bucket.state is not None
    master = bucket.state.master
    shown = bucket.params.untyped_storage().data_ptr()
    return (master.is_split or master.is_param) and master.param.untyped_storage().data_ptr() == shown


def _kinds(optimizer: ShardedOptimizer | None) -> tuple[tuple[str, ...], ...]:
    """By group; a group without parameters has none."""
    if optimizer is None:
        return ()
    found: dict[int, tuple[str, ...]] = {}
    for bucket in optimizer.buckets:
        assert bucket.state is not None
        found[bucket.spec.group] = bucket.state.kinds
    return tuple(found.get(number, ()) for number in range(len(optimizer.param_groups)))


def _loose(
    module: torch.nn.Module, exclude_frozen: bool
) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """What of the state dict no bucket holds, each tensor once: those a file can hold, and what else."""
    params = dict(module.named_parameters(remove_duplicate=False))
    aliases = tied_names(module)
    tensors: dict[str, torch.Tensor] = {}
    extra: dict[str, object] = {}
    for name, value in module.state_dict().items():
        param = params.get(name)
        if name in aliases or (param is not None and home_of(param) is not None):
            continue
        if exclude_frozen and param is not None and not param.requires_grad:
            continue
        if isinstance(value, torch.Tensor) and can_hold(value):
            tensors[name] = value
        else:
            extra[name] = value
    return tensors, extra


def _share_out(
    module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], world: int
) -> dict[str, WholeEntry]:
    """Which rank writes which tensor: the buffers rank 0, whose they are, the rest whoever has least."""
    params = dict(module.named_parameters(remove_duplicate=False))
    load = [0] * world
    whole: dict[str, WholeEntry] = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[0] in params, item[0])):
        file = load.index(min(load)) if name in params else 0
        load[file] += tensor.numel() * tensor.element_size()
        whole[name] = WholeEntry(
            file, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), name in params
        )
    return whole


def _scheduler_state(scheduler: LrScheduler | None) -> object:
    return scheduler.state_dict() if scheduler is not None and hasattr(scheduler, "state_dict") else None


def _safe_pickle(content: object) -> bytes:
    """`content` as torch.save writes it; CheckpointError unless it can be read without running code."""
    buffer = io.BytesIO()
    try:
        torch.save(content, buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except Exception as error:
        raise CheckpointError(
            "client_state (or the scheduler's state) holds what cannot be loaded safely: "
            + str(error).strip().splitlines()[0],
            "keep to numbers, strings, lists, dicts and tensors",
        ) from None
    return buffer.getvalue()
