"""Loading at any world size and stage: every rank reads the slices its own shard is made of.

Legend: `S` elements of this rank's shard of a bucket.
Each file's checksum is verified once, by one of the ranks, before any state of the engine is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from safetensors import safe_open

from dslaunch.engine import checkpoint_files as files
from dslaunch.engine import checkpoint_manifest as manifests
from dslaunch.engine import log
from dslaunch.engine.checkpoint_manifest import Manifest
from dslaunch.engine.checkpoint_save import (
    MODULE_FILE,
    STATE_FILE,
    tensor_name,
)
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.layout import Layout, plan_reshard
from dslaunch.engine.model_weights import load_module
from dslaunch.engine.optimizer import ShardedOptimizer
from dslaunch.engine.zero import GatheredParameters

if TYPE_CHECKING:
    from dslaunch.engine.engine import Engine

CustomLoad = Callable[..., object]  # called with src= (the state dict) and dst= (the module)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Where to load from and which parts to take."""

    load_dir: Path
    tag: str | None
    module_strict: bool
    optimizer_states: bool
    lr_scheduler_states: bool
    module_only: bool
    custom_load_fn: CustomLoad | None


def load(engine: Engine, request: LoadRequest) -> tuple[str, dict[str, object]] | tuple[None, None]:
    """Restore `engine`; (directory, client state), or (None, None) with a warning where no checkpoint is."""
    ranks = engine.ranks
    ranks.enter("load_checkpoint")
    tag = ranks.from_first(request.tag if request.tag is not None else files.newest_tag(request.load_dir))
    if tag is None:
        log.warn(
            engine.global_rank,
            f"no checkpoint is loaded: {request.load_dir / 'latest'} does not exist and no tag was given",
        )
        return None, None
    found: list[tuple[Path, Manifest]] = []

    def examine() -> None:
        directory = files.find(request.load_dir, tag)
        manifest = manifests.read(directory)
        for name in sorted(manifest.files)[engine.global_rank :: engine.world_size]:
            files.check(directory / name, manifest.files[name])
        found.append((directory, manifest))

    ranks.settle(ranks.attempt(examine))
    directory, manifest = found[0]
    ranks.settle(ranks.attempt(lambda: _check_fit(engine, request, manifest)))
    state = torch.load(directory / STATE_FILE, map_location="cpu", weights_only=True)
    engine.empty_partition_cache()
    _load_module(engine, request, directory, manifest, state["module_extra"])
    if engine.optimizer is not None:
        _load_optimizer(engine.optimizer, request, directory, manifest)
        scaler = engine.optimizer.policy.scaler
        if scaler is not None and _wants_optimizer(request, manifest) and state.get("loss_scaler"):
            scaler.load_state_dict(state["loss_scaler"])
    if not request.module_only:
        _load_progress(engine, request, manifest, state["lr_scheduler"])
    return str(directory), state["client_state"]


def _check_fit(engine: Engine, request: LoadRequest, manifest: Manifest) -> None:
    """Every parameter whose optimizer state is asked for must be there with its shape."""
    if engine.optimizer is None or not _wants_optimizer(request, manifest):
        return
    for bucket in engine.optimizer.buckets:
        for slot, own in zip(bucket.spec.slots, bucket.shapes, strict=True):
            shape = manifest.shapes.get(slot.name)
            if shape is None and request.module_strict:
                raise CheckpointError(
                    f"the checkpoint {manifest.tag} has no optimizer state for {slot.name}",
                    "pass load_optimizer_states=False, or load_module_strict=False to start it from zero",
                )
            if shape is not None and shape != tuple(own):
                raise CheckpointError(
                    f"{slot.name} has shape {tuple(own)}, in the checkpoint {manifest.tag} {shape}",
                    "build the model as it was when it was saved",
                )


def _wants_optimizer(request: LoadRequest, manifest: Manifest) -> bool:
    return request.optimizer_states and not request.module_only and manifest.layout is not None


def _load_module(
    engine: Engine,
    request: LoadRequest,
    directory: Path,
    manifest: Manifest,
    extra: Mapping[str, object],
) -> None:
    tensors: dict[str, object] = {}
    with safe_open(directory / MODULE_FILE, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - safe_open is not a mapping
            tensors[name] = file.get_tensor(name)
    for alias, name in manifest.aliases.items():
        if name in tensors:
            tensors[alias] = tensors[name]
    tensors.update(extra)
    if request.custom_load_fn is not None:
        with GatheredParameters(engine.module.parameters(), modifier_rank=0):
            request.custom_load_fn(src=tensors, dst=engine.module)
        return
    try:
        load_module(engine, tensors, request.module_strict)
    except RuntimeError as error:
        raise CheckpointError(
            f"the checkpoint {directory} does not fit the module: {error}",
            "build the model as it was when it was saved, or pass load_module_strict=False",
        ) from None


def _load_optimizer(
    optimizer: ShardedOptimizer, request: LoadRequest, directory: Path, manifest: Manifest
) -> None:
    """Masters from the module, then whatever the shards know better, then parameters from masters."""
    optimizer.refresh_masters()
    optimizer.zero_grad()
    if not _wants_optimizer(request, manifest):
        return
    assert manifest.layout is not None
    _check_states(optimizer, manifest.layout, directory)
    for state in optimizer.shards:
        state.restart()
    _read_slices(optimizer, manifest.layout, directory)
    optimizer.num_applied = manifest.counters.optimizer_steps
    if len(manifest.param_groups) == len(optimizer.param_groups):
        for group, saved in zip(optimizer.param_groups, manifest.param_groups, strict=True):
            for key, value in saved.items():
                group[key] = tuple(value) if isinstance(value, list) else value
    optimizer.publish()


def _check_states(optimizer: ShardedOptimizer, saved: Layout, directory: Path) -> None:
    """CheckpointError, on every rank alike, if another optimizer has saved the checkpoint."""
    with safe_open(directory / manifests.shard_name(0, saved.num_shards), framework="pt") as file:
        stored = set(file.keys())
    sources = saved.slots()
    for bucket, state in zip(optimizer.buckets, optimizer.shards, strict=True):
        for slot in bucket.spec.slots:
            source = sources.get(slot.name)
            for kind in state.kinds:
                if source is not None and tensor_name(source.bucket, kind) not in stored:
                    raise CheckpointError(
                        f"the checkpoint has no optimizer state {kind} of {slot.name}: "
                        "another optimizer has saved it",
                        "load it with load_optimizer_states=False",
                    )


def _read_slices(optimizer: ShardedOptimizer, saved: Layout, directory: Path) -> None:
    own = Layout(tuple(bucket.spec for bucket in optimizer.buckets), optimizer.sharding.num_shards)
    copies = plan_reshard(saved, own, optimizer.sharding.index)
    copies.sort(key=lambda copy: copy.source_shard)
    for shard, of_shard in groupby(copies, key=lambda copy: copy.source_shard):
        with safe_open(directory / manifests.shard_name(shard, saved.num_shards), framework="pt") as file:
            for copy in of_shard:
                source = slice(copy.source_start, copy.source_start + copy.numel)
                target = slice(copy.target_start, copy.target_start + copy.numel)
                state = optimizer.shards[copy.target_bucket]
                for kind in state.kinds:
                    stored = file.get_slice(tensor_name(copy.source_bucket, kind))
                    state.tensor(kind)[target].copy_(stored[source])


def _load_progress(engine: Engine, request: LoadRequest, manifest: Manifest, scheduler: object) -> None:
    counters = manifest.counters
    engine.global_steps = counters.global_steps
    engine.global_samples = counters.global_samples
    engine.skipped_steps = counters.skipped_steps
    engine.loaded_checkpoint_dp_world_size = manifest.world_size
    engine.restart_accumulation()
    if request.lr_scheduler_states and scheduler is not None and engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(cast("dict[str, object]", scheduler))
