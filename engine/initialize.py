"""Putting an engine together from a model and a configuration."""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from dslaunch.engine import checkpointing, collectives, log
from dslaunch.engine.batch import World, resolve_batch
from dslaunch.engine.buckets import Bucket, Sharding, build_buckets
from dslaunch.engine.config import EngineConfig, load_config
from dslaunch.engine.config_observe import ActivationCheckpointingConfig
from dslaunch.engine.config_source import ConfigInput, choose_source
from dslaunch.engine.dataloader import TrainingDataLoader
from dslaunch.engine.distributed import current_world, init_distributed, use_device
from dslaunch.engine.engine import Engine, EngineParts
from dslaunch.engine.errors import EngineError
from dslaunch.engine.layout import Layout, ParamSpec, plan_layout
from dslaunch.engine.lr_schedules import LrScheduler, build_scheduler
from dslaunch.engine.optimizer import ShardedAdamW, StepPolicy
from dslaunch.engine.param_groups import GroupPlan, ModelParameters, ParamGroup, plan_groups
from dslaunch.engine.ranks import join
from dslaunch.engine.reducer import Reducer

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Initialized = tuple[Engine, ShardedAdamW | None, TrainingDataLoader | None, LrScheduler | None]
SchedulerInput = LrScheduler | Callable[[torch.optim.Optimizer], LrScheduler]

# Buckets no larger than this leave early enough to overlap with backward, and are large enough for full
# bandwidth. reduce_bucket_size is a cap on top of it.
OVERLAP_BUCKET_NUMEL = 1 << 25

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add `--deepspeed` and `--deepspeed_config PATH` to the script's parser."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", action="store_true", help="use the engine (for the script to read)")
    group.add_argument("--deepspeed_config", metavar="PATH", help="the ds_config.json file")
    return parser


def initialize(
    args: object = None,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    model_parameters: ModelParameters | None = None,
    training_data: Dataset[object] | None = None,
    lr_scheduler: SchedulerInput | None = None,
    distributed_port: int = 29500,
    mpu: object = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[[list[object]], object] | None = None,
    config: ConfigInput | None = None,
    mesh_param: object = None,
    config_params: ConfigInput | None = None,
) -> Initialized:
    """Make an engine of `model`: (engine, optimizer, training dataloader, scheduler). Collective.

    The configuration is `config`, `config_params` or `args.deepspeed_config`: a path, a dict, or base64 of
    JSON. The process group is created unless it exists. The model is cast, moved to this rank's device and
    given rank 0's parameters and buffers; its parameters become views into flat buckets. ConfigError and
    EngineError say what is refused.
    """
    if model is None:
        raise EngineError("deepspeed.initialize requires a model", "pass model=")
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
        if value is not None:
            raise EngineError(f"{name} is not supported: all ranks are data-parallel", f"drop {name}=")
    settings = load_config(choose_source(config, config_params, args))
    log.start(settings.log_level)
    init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    world = current_world()
    batch = resolve_batch(settings.batch, world)
    plan = plan_groups(settings.optimizer, optimizer, model_parameters, model)
    device = use_device(world)
    _place(model, settings, device)
    wrapped = None if plan is None else _build_optimizer(model, plan, settings, world)
    _synchronize(model, [] if wrapped is None else wrapped.buckets, world)
    if wrapped is not None:
        wrapped.refresh_masters()
    if settings.activation_checkpointing != ActivationCheckpointingConfig():
        checkpointing.adopt(settings.activation_checkpointing)
    engine = Engine(
        EngineParts(
            module=model,
            config=settings,
            batch=batch,
            device=device,
            ranks=join(world),
            optimizer=wrapped,
            lr_scheduler=_scheduler(settings, lr_scheduler, wrapped, plan),
            training_dataloader=None
            if training_data is None
            else TrainingDataLoader(
                training_data, batch.micro, world, collate_fn, settings.dataloader_drop_last
            ),
        )
    )
    _introduce(engine)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _place(model: torch.nn.Module, settings: EngineConfig, device: torch.device) -> None:
    """Cast floating parameters to the compute dtype and move the module; buffers keep their dtype."""
    dtype = _DTYPES[settings.dtype]
    for name, param in model.named_parameters():
        if param.is_meta:
            raise EngineError(
                f"parameter {name} is on the meta device", "materialise the model before initialize"
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
        if param.is_floating_point() and param.dtype != dtype and settings.dtype != "fp32":
            param.data = param.data.to(dtype)
    model.to(device)


def _build_optimizer(
    model: torch.nn.Module, plan: GroupPlan, settings: EngineConfig, world: World
) -> ShardedAdamW:
    named = dict(model.named_parameters())
    layout = _layout(named, plan.groups, settings, world)
    sharding = Sharding(layout.num_shards, world.rank if layout.num_shards > 1 else 0)
    buckets = build_buckets(layout, named, sharding, _DTYPES[settings.grad_accum_dtype])
    reducer = Reducer(buckets, sharding, world.size, settings.zero.overlap_comm)
    policy = StepPolicy(settings.gradient_clipping, settings.check_grad_overflow)
    return ShardedAdamW(plan.groups, buckets, sharding, reducer, policy)


def _layout(
    named: dict[str, torch.nn.Parameter], groups: list[ParamGroup], settings: EngineConfig, world: World
) -> Layout:
    group_of: dict[int, int] = {}
    homes: dict[int, str] = {}
    for name, param in named.items():
        other = homes.setdefault(param.data_ptr(), name) if param.numel() else name
        if other != name:
            raise EngineError(
                f"parameters {other} and {name} share their memory but are two Parameter objects",
                "tie them by assigning the same Parameter to both modules",
            )
    for number, group in enumerate(groups):
        for param in group["params"]:  # type: ignore[attr-defined]
            if id(param) in group_of:
                raise EngineError("a parameter stands in two parameter groups", "keep it in one of them")
            group_of[id(param)] = number
    specs = [
        ParamSpec(name, param.numel(), group_of[id(param)], str(param.dtype).removeprefix("torch."))
        for name, param in named.items()
        if id(param) in group_of
    ]
    if not specs:
        raise EngineError(
            "there is nothing to train: no parameter in the groups is the model's and requires a gradient",
            "pass model_parameters=model.parameters() of the model given to initialize",
        )
    if len(specs) != len(group_of):
        raise EngineError(
            f"{len(group_of) - len(specs)} of the parameters to train are not the model's",
            "pass parameters of the model given to initialize",
        )
    num_shards = world.size if settings.zero.stage >= 1 else 1
    return plan_layout(specs, num_shards, min(settings.zero.reduce_bucket_size, OVERLAP_BUCKET_NUMEL))


def _synchronize(model: torch.nn.Module, buckets: Sequence[Bucket], world: World) -> None:
    """Give every rank rank 0's parameters and buffers, after checking that all built the same model."""
    if world.size == 1:
        return
    bucketed = {id(param) for bucket in buckets for param in bucket.members}
    others = [param for param in model.parameters() if id(param) not in bucketed]
    tensors = [*(bucket.params for bucket in buckets), *(p.data for p in others), *model.buffers()]
    description = [
        (name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in model.named_parameters()
    ]
    if tensors and not collectives.agree([zlib.crc32(repr(description).encode())], tensors[0].device):
        raise EngineError(
            "the ranks have built different models (parameter names, shapes or dtypes differ)",
            "build the model from the same arguments on every rank",
        )
    for tensor in tensors:
        collectives.broadcast(tensor)


def _scheduler(
    settings: EngineConfig,
    client: SchedulerInput | None,
    optimizer: ShardedAdamW | None,
    plan: GroupPlan | None,
) -> LrScheduler | None:
    """The script's scheduler, object or callable, or the config's; the script's wins."""
    if optimizer is None:
        return None
    if client is None:
        return None if settings.scheduler is None else build_scheduler(settings.scheduler, optimizer)
    if not hasattr(client, "step") and callable(client):
        return client(optimizer)
    bound = getattr(client, "optimizer", None)
    if plan is None or bound is None or bound is not plan.client:
        raise EngineError(
            "the lr_scheduler steers an optimizer that initialize was not given",
            "pass that optimizer as optimizer=, or a callable lr_scheduler=lambda optimizer: ...",
        )
    if isinstance(client, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise EngineError(
            "ReduceLROnPlateau needs a metric that the engine does not have", "step it in the script"
        )
    # It watches the step() of the script's optimizer, which nobody calls, and would warn about that.
    bound._opt_called = True  # type: ignore[union-attr]
    return client  # type: ignore[return-value]


def _introduce(engine: Engine) -> None:
    config, sizes, rank, world_size = engine.config, engine.batch_sizes, engine.global_rank, engine.world_size
    for note in config.notes:
        log.say(rank, note)
    for warning in config.warnings:
        log.warn(rank, warning)
    buckets = [] if engine.optimizer is None else list(engine.optimizer.buckets)
    trained = sum(slot.numel for bucket in buckets for slot in bucket.spec.slots)
    log.say(
        rank,
        f"engine: ZeRO stage {config.zero.stage}, {config.dtype}, gradients in {config.grad_accum_dtype}, "
        f"world {world_size} on {engine.device.type}, {trained:,} parameters in {len(buckets)} buckets, "
        f"batch {sizes.train} = {sizes.micro} * {sizes.accumulation} * {world_size}, "
        f"gradient clipping {config.gradient_clipping or 'off'}",
    )
    idle = sum(param.requires_grad for param in engine.module.parameters()) - sum(
        len(bucket.members) for bucket in buckets
    )
    if buckets and idle:
        log.warn(
            rank, f"{idle} parameters require a gradient but are in no parameter group: they are not trained"
        )
