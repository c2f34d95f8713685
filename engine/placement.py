"""A model's parameters moved to where they are trained: into flat buckets, whole or sharded.

Legend: `W` data-parallel ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dslaunch.engine import collectives
from dslaunch.engine.batch import World
from dslaunch.engine.buckets import Bucket, Sharding, build_resident, home_of, shape_of
from dslaunch.engine.config_values import EngineConfig, Stage3Config
from dslaunch.engine.errors import EngineError
from dslaunch.engine.lanes import lane_of
from dslaunch.engine.layout import RESIDENT, Layout, ParamSpec, plan_layout
from dslaunch.engine.optimizer_rules import splits_masters
from dslaunch.engine.param_groups import GroupPlan, ParamGroup
from dslaunch.engine.sharded import (
    HostHome,
    ShardedBucket,
    build_sharded,
    give_surface,
    sharded_bucket_of,
)
from dslaunch.engine.units import Unit, UnitRules, find_units, leaf_rule
from dslaunch.engine.zeropp import join_node

# Buckets no larger than this leave early enough to overlap with backward, and are large enough for full
# bandwidth. reduce_bucket_size is a cap on top of it.
OVERLAP_BUCKET_NUMEL = 1 << 25
FROZEN = -1

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where everything is."""

    sharding: Sharding
    trained: Sequence[Bucket]  # in the order in which backward completes them
    frozen: Sequence[ShardedBucket]
    units: Sequence[Unit]  # of stage 3 where parameters are gathered, else none

    @property
    def sharded(self) -> list[ShardedBucket]:
        """The buckets that have to be gathered before use."""
        return [bucket for bucket in (*self.trained, *self.frozen) if isinstance(bucket, ShardedBucket)]


@torch.no_grad()
def place(
    model: torch.nn.Module,
    plan: GroupPlan | None,
    settings: EngineConfig,
    world: World,
    device: torch.device,
) -> Placement:
    """Cast, shard and move the model, with rank 0's values on every rank; no `plan`: frozen. Collective.

    Floating parameters take the compute dtype, buffers keep theirs. EngineError where ranks have built
    different models, or parameters cannot be trained as they are.
    """
    named = dict(model.named_parameters())
    _check_parameters(named, settings)
    _check_same_model(named, device)
    group_of = _group_of(named, [] if plan is None else plan.groups)
    stage = settings.zero.stage
    shards = world.size if stage >= 1 else 1
    host_home = host_home_of(settings, device)
    gathers = stage == 3 and (shards > 1 or host_home is not None or _is_large(named.values(), settings))
    sharding = Sharding(
        shards, world.rank if shards > 1 else 0, gradients=gathers or (stage >= 2 and shards > 1)
    )
    units: list[Unit] = []
    if gathers:
        numel = {id(param): shape_of(param).numel() for param in named.values()}
        rules = UnitRules(leaf_rule(settings.zero.leaf_module), lambda param: numel[id(param)])
        units = find_units(model, rules)
    specs = _specs(named, group_of, _unit_of(named, units, settings.zero.stage3), settings)
    trained, frozen = _build(specs, named, sharding, settings, device, host_home, plan)
    _gather_what_init_sharded(named.values(), {id(p) for b in (*trained, *frozen) for p in b.members})
    _move_the_rest(model, named, settings, device)
    placement = Placement(sharding, trained, frozen, units)
    node = join_node(world, settings.zero.zero_hpz_partition_size) if placement.sharded else None
    for bucket in placement.sharded:
        bucket.node, bucket.quantizes = node, settings.zero.zero_quantized_weights
    if stage == 3:
        for param in named.values():
            give_surface(param)
    return placement


def host_home_of(settings: EngineConfig, device: torch.device) -> HostHome | None:
    """Where shards of parameters go under offload_param; None: they stay on `device`."""
    offload = settings.zero.offload_param
    return HostHome(lane_of(device), offload.pin_memory) if offload.is_on else None


def _build(
    specs: Sequence[ParamSpec],
    named: Mapping[str, torch.nn.Parameter],
    sharding: Sharding,
    settings: EngineConfig,
    device: torch.device,
    host_home: HostHome | None,
    plan: GroupPlan | None,
) -> tuple[list[Bucket], list[ShardedBucket]]:
    cap = min(settings.zero.reduce_bucket_size, OVERLAP_BUCKET_NUMEL)
    grad_dtype = DTYPES[settings.grad_accum_dtype]
    on_device = host_home is None and not settings.zero.offload_optimizer.is_on
    trained: list[Bucket] = []
    for spec in _plan([spec for spec in specs if spec.group != FROZEN], sharding, cap).buckets:
        members = [named[slot.name] for slot in spec.slots]
        if spec.unit == RESIDENT:
            trained.append(build_resident(spec, members, sharding, device, grad_dtype))
        else:
            assert plan is not None
            splits = splits_masters(plan.rule, plan.groups[spec.group], spec.dtype)
            masters = on_device and not splits
            trained.append(build_sharded(spec, members, sharding, device, grad_dtype, host_home, masters))
        if settings.zero.offload_optimizer.is_on:
            trained[-1].free_grads()  # until the first backward
    sleeping = [spec for spec in specs if spec.group == FROZEN and spec.unit != RESIDENT]
    frozen = [
        build_sharded(spec, [named[slot.name] for slot in spec.slots], sharding, device, None, host_home)
        for spec in _plan(sleeping, sharding, cap).buckets
    ]
    return trained, frozen


def _is_large(params: Iterable[torch.nn.Parameter], settings: EngineConfig) -> bool:
    """Whether gathering saves memory on a single rank, too: masters are enough, of which a few are cast."""
    numel = sum(shape_of(param).numel() for param in params)
    return settings.dtype != "fp32" and numel > settings.zero.stage3.max_live_parameters


def _plan(specs: Sequence[ParamSpec], sharding: Sharding, cap: int) -> Layout:
    return plan_layout(specs, sharding.num_shards, cap)


def _check_parameters(named: Mapping[str, torch.nn.Parameter], settings: EngineConfig) -> None:
    homes: dict[int, str] = {}
    for name, param in named.items():
        if param.is_meta:
            raise EngineError(
                f"parameter {name} is on the meta device", "build the model on a real device, or in zero.Init"
            )
        if param.requires_grad and not param.is_floating_point():
            raise EngineError(
                f"parameter {name} is {param.dtype}: only real numbers are trained", "freeze it"
            )
        if settings.dtype == "fp32" and param.requires_grad and param.dtype != torch.float32:
            raise EngineError(
                f"parameter {name} is {param.dtype}, but the config trains in fp32",
                'write "bf16": {"enabled": true}, or build the model in fp32',
            )
        other = homes.setdefault(param.data_ptr(), name) if param.numel() else name
        if other != name:
            raise EngineError(
                f"parameters {other} and {name} share their memory but are two Parameter objects",
                "tie them by assigning the same Parameter to both modules",
            )


def _check_same_model(named: Mapping[str, torch.nn.Parameter], device: torch.device) -> None:
    if collectives.num_ranks() == 1 or not named:
        return
    description = [(name, tuple(shape_of(p)), str(p.dtype), p.requires_grad) for name, p in named.items()]
    if not collectives.agree([zlib.crc32(repr(description).encode())], device):
        raise EngineError(
            "the ranks have built different models (parameter names, shapes or dtypes differ)",
            "build the model from the same arguments on every rank",
        )


def _group_of(named: Mapping[str, torch.nn.Parameter], groups: Sequence[ParamGroup]) -> Mapping[int, int]:
    """Parameter (by identity) -> the group it is trained in."""
    group_of: dict[int, int] = {}
    for number, group in enumerate(groups):
        for param in group["params"]:  # type: ignore[attr-defined]
            if id(param) in group_of:
                raise EngineError("a parameter stands in two parameter groups", "keep it in one of them")
            group_of[id(param)] = number
    known = sum(id(param) in group_of for param in named.values())
    if groups and not known:
        raise EngineError(
            "there is nothing to train: no parameter in the groups is the model's and requires a gradient",
            "pass model_parameters=model.parameters() of the model given to initialize",
        )
    if known != len(group_of):
        raise EngineError(
            f"{len(group_of) - known} of the parameters to train are not the model's",
            "pass parameters of the model given to initialize",
        )
    return group_of


def _unit_of(
    named: Mapping[str, torch.nn.Parameter], units: Sequence[Unit], config: Stage3Config
) -> Mapping[int, int]:
    """Parameter -> the first unit that holds it; RESIDENT for small ones, which stay gathered."""
    unit_of: dict[int, int] = {}
    for number, unit in enumerate(units):
        for param in unit.params:
            unit_of.setdefault(id(param), number)
    persistent = 0
    for param in named.values():
        numel = shape_of(param).numel()
        small = numel <= config.param_persistence_threshold
        if small and persistent + numel <= config.model_persistence_threshold:
            unit_of[id(param)] = RESIDENT
            persistent += numel
    return unit_of


def _specs(
    named: Mapping[str, torch.nn.Parameter],
    group_of: Mapping[int, int],
    unit_of: Mapping[int, int],
    settings: EngineConfig,
) -> list[ParamSpec]:
    return [
        ParamSpec(
            name,
            shape_of(param).numel(),
            group_of.get(id(param), FROZEN),
            str(_target_dtype(param, settings)).removeprefix("torch."),
            unit_of.get(id(param), RESIDENT),
        )
        for name, param in named.items()
    ]


def _target_dtype(param: torch.Tensor, settings: EngineConfig) -> torch.dtype:
    casts = settings.dtype != "fp32" and param.is_floating_point()
    return DTYPES[settings.dtype] if casts else param.dtype


def _gather_what_init_sharded(params: Iterable[torch.nn.Parameter], placed: set[int]) -> None:
    """Parameters that zero.Init has sharded and no bucket has taken stay whole from here on."""
    for param in params:
        bucket = sharded_bucket_of(param)
        if bucket is not None and id(param) not in placed:
            bucket.gather()
            param.data = param.data.clone()
            delattr(param, "_ds_home")


def _move_the_rest(
    model: torch.nn.Module,
    named: Mapping[str, torch.nn.Parameter],
    settings: EngineConfig,
    device: torch.device,
) -> None:
    """Frozen parameters and buffers: cast, moved, and rank 0's."""
    for param in named.values():
        if home_of(param) is None:
            param.data = param.data.to(device, _target_dtype(param, settings))
    model.to(device)
    for tensor in (*(p.data for p in named.values() if home_of(p) is None), *model.buffers()):
        collectives.broadcast(tensor)
