"""Putting an engine together from a model and a configuration."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from dslaunch.engine import checkpointing, collectives, log
from dslaunch.engine.batch import World, resolve_batch
from dslaunch.engine.buckets import Bucket
from dslaunch.engine.checkpoint_background import Saves
from dslaunch.engine.config import EngineConfig, load_config
from dslaunch.engine.config_observe import ActivationCheckpointingConfig
from dslaunch.engine.config_source import ConfigInput, choose_source, load_source
from dslaunch.engine.dataloader import TrainingDataLoader
from dslaunch.engine.distributed import current_world, init_distributed, use_device
from dslaunch.engine.engine import Engine, EngineParts
from dslaunch.engine.errors import EngineError
from dslaunch.engine.gather_order import GatherOrder
from dslaunch.engine.gatherer import Gatherer, GatherLimits
from dslaunch.engine.late_gather import LateGather, is_wanted
from dslaunch.engine.loss_scale import LossScaler
from dslaunch.engine.lr_schedules import LrScheduler, build_scheduler
from dslaunch.engine.model_dtype import following
from dslaunch.engine.offload import build_offload
from dslaunch.engine.optimizer import ShardedOptimizer
from dslaunch.engine.param_groups import GroupPlan, ModelParameters, plan_groups
from dslaunch.engine.parameter_offload import ParameterOffload
from dslaunch.engine.placement import DTYPES, Placement, place
from dslaunch.engine.rank_order import RankOrder
from dslaunch.engine.ranks import join, join_background
from dslaunch.engine.reducer import GradientReducer, Reducer
from dslaunch.engine.shard_reducer import ShardReducer
from dslaunch.engine.step_policy import StepPolicy

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Initialized = tuple[Engine, ShardedOptimizer | None, TrainingDataLoader | None, LrScheduler | None]
OptimizerInput = torch.optim.Optimizer | Callable[[ModelParameters], torch.optim.Optimizer]
SchedulerInput = LrScheduler | Callable[[torch.optim.Optimizer], LrScheduler]


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add `--deepspeed` and `--deepspeed_config PATH` to the script's parser."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", action="store_true", help="use the engine (for the script to read)")
    group.add_argument("--deepspeed_config", metavar="PATH", help="the ds_config.json file")
    return parser


def initialize(
    args: object = None,
    model: torch.nn.Module | None = None,
    optimizer: OptimizerInput | None = None,
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

    `optimizer` and `lr_scheduler` may be made by calls, with the parameters and with the optimizer.
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
    source = choose_source(config, config_params, args)
    settings = following(load_config(source), model, "data_types" in load_source(source).raw)
    log.start(settings.log_level)
    init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    world = current_world()
    batch = resolve_batch(settings.batch, world)
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        trained = [param for param in model.parameters() if param.requires_grad]
        optimizer = optimizer(trained if model_parameters is None else model_parameters)
    plan = plan_groups(settings.optimizer, optimizer, model_parameters, model)
    if (
        plan is not None
        and plan.is_untested
        and settings.zero.stage
        and not settings.zero_allow_untested_optimizer
    ):
        raise EngineError(
            'You are using an untested ZeRO Optimizer. Please add <"zero_allow_untested_optimizer": true> '
            "in the configuration file to use it.",
            f"{plan.name} was tried: shards {'' if plan.is_exact else 'do not '}end as whole tensors would",
        )
    device = use_device(world)
    if optimizer is not None:
        # Schedulers watch its step(), which nobody calls, and would warn about that.
        optimizer._opt_called = True  # type: ignore[attr-defined]
    placement = place(model, plan, settings, world, device)
    gatherer = _build_gatherer(model, placement, settings, world)
    wrapped = None if plan is None else _build_optimizer(plan, placement, gatherer, settings)
    parameter_offload = ParameterOffload(model, gatherer) if settings.zero.stage == 3 else None
    if wrapped is not None and parameter_offload is not None:
        wrapped.parameter_offload = parameter_offload
    if wrapped is not None and is_wanted():
        arrive_late = placement.sharding.num_shards > 1 or wrapped.offload is not None
        watches = arrive_late and not placement.sharded
        wrapped.steps.wait_late(LateGather(model, placement.trained) if watches else None)
    if settings.activation_checkpointing != ActivationCheckpointingConfig():
        checkpointing.adopt(settings.activation_checkpointing)
    ranks = join(world)
    engine = Engine(
        EngineParts(
            module=model,
            config=settings,
            raw_config=load_source(source).raw,
            batch=batch,
            device=device,
            ranks=ranks,
            saves=Saves(ranks, join_background(world) if settings.checkpoint.asynchronous else None),
            placement=placement,
            gatherer=gatherer,
            optimizer=wrapped,
            parameter_offload=parameter_offload,
            lr_scheduler=_scheduler(settings, lr_scheduler, wrapped, plan),
            training_dataloader=None
            if training_data is None
            else TrainingDataLoader(
                training_data, batch.micro, world, collate_fn, settings.dataloader_drop_last
            ),
        )
    )
    _introduce(engine, plan)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _build_optimizer(
    plan: GroupPlan, placement: Placement, gatherer: Gatherer | None, settings: EngineConfig
) -> ShardedOptimizer:
    # A script that ends its own accumulation says so by step(): nothing may leave before.
    overlap = settings.zero.overlap_comm and settings.managed_gradient_accumulation
    zero = settings.zero
    if zero.offload_param.is_on and not zero.offload_optimizer.is_on:
        raise EngineError(
            "offload_param without offload_optimizer: parameters on the host are stepped there",
            'write "offload_optimizer": {"device": "cpu"}, or train without offload_param',
        )
    offload = build_offload(plan, placement, zero.offload_optimizer)
    host_gradients = None if offload is None else offload.gradients
    averages = settings.gradient_allreduce_op == "mean"
    reducer: GradientReducer
    if placement.sharding.gradients:
        reducer = ShardReducer(
            placement.trained,
            overlap,
            DTYPES[settings.grad_accum_dtype],
            _ignore if gatherer is None else gatherer.bucket_complete,
            host_gradients,
            averages,
        )
    else:
        num_ranks = collectives.num_ranks()
        reducer = Reducer(placement.trained, placement.sharding, num_ranks, overlap, host_gradients, averages)
    scaler = LossScaler(settings.fp16) if settings.scales_loss else None
    skip = scaler is not None or settings.check_grad_overflow
    policy = StepPolicy(settings.gradient_clipping, skip, scaler)
    return ShardedOptimizer(plan, placement.trained, placement.sharding, reducer, policy, offload)


def _build_gatherer(
    model: torch.nn.Module, placement: Placement, settings: EngineConfig, world: World
) -> Gatherer | None:
    if not placement.sharded:
        return None
    config = settings.zero.stage3
    order = GatherOrder(RankOrder(world, placement.sharded[0].params.device).compare)
    limits = GatherLimits(config.prefetch_bucket_size, config.max_live_parameters)
    return Gatherer(model, placement.units, placement.sharded, order, limits)


def _ignore(_: Bucket) -> None:
    """Nobody has to know that a bucket's gradients are complete."""


def _scheduler(
    settings: EngineConfig,
    client: SchedulerInput | None,
    optimizer: ShardedOptimizer | None,
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
    return client  # type: ignore[return-value]


def _introduce(engine: Engine, plan: GroupPlan | None) -> None:
    config, sizes = engine.settings, engine.batch_sizes
    rank, world_size = engine.global_rank, engine.world_size
    for note in config.notes:
        log.say(rank, note)
    for warning in config.warnings:
        log.warn(rank, warning)
    if plan is not None and not plan.is_exact:
        log.warn(
            rank,
            f"{plan.name} looks beyond single elements: it sees each shard as one vector, "
            "so that the result depends on the number of ranks, as in DeepSpeed",
        )
    buckets = [] if engine.zero_optimizer is None else list(engine.zero_optimizer.buckets)
    trained = sum(slot.numel for bucket in buckets for slot in bucket.spec.slots)
    log.say(
        rank,
        f"DeepSpeed info: dslaunch engine, ZeRO stage {config.zero.stage}, {config.dtype}, "
        f"gradients in {config.grad_accum_dtype}, "
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
