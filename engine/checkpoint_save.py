"""Saving: every rank its optimizer shard, rank 0 the module and the manifest, then one rename."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dslaunch.engine import checkpoint_files as files
from dslaunch.engine import checkpoint_manifest as manifests
from dslaunch.engine import log
from dslaunch.engine.checkpoint_files import FileSum
from dslaunch.engine.checkpoint_manifest import Counters, Manifest
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.layout import Layout
from dslaunch.engine.lr_schedules import LrScheduler
from dslaunch.engine.model_weights import consolidated
from dslaunch.engine.optimizer import ShardedOptimizer

if TYPE_CHECKING:
    from dslaunch.engine.engine import Engine

MODULE_FILE = "module.safetensors"
STATE_FILE = "state.pt"


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """Where to save, and what besides the engine's own state."""

    save_dir: Path
    tag: str
    client_state: Mapping[str, object]
    save_latest: bool
    exclude_frozen_parameters: bool


def save(engine: Engine, request: SaveRequest) -> None:
    """Write the checkpoint. Collective. A failure on one rank raises on all and replaces nothing."""
    ranks = engine.ranks
    ranks.enter("save_checkpoint")
    if engine.micro_steps % engine.batch_sizes.accumulation:
        log.warn(engine.global_rank, "saving between accumulation steps: the gradients so far are not saved")
    tags = ranks.gather(request.tag)
    if len(set(tags)) > 1:
        raise CheckpointError(f"ranks save under different tags: {', '.join(tags)}", "pass the same tag")
    directory = files.saving_dir(request.save_dir, files.checked_tag(request.tag))
    if engine.global_rank == 0:
        ranks.settle(ranks.attempt(lambda: files.fresh_dir(directory)))
    else:
        ranks.settle(None)
    sums: dict[str, FileSum] = {}
    error = ranks.attempt(lambda: sums.update(write_files(engine, request, directory)))
    gathered = ranks.gather(sums)
    try:
        ranks.settle(error)
        ranks.settle(ranks.attempt(lambda: _finish(engine, request, directory, gathered)))
    except CheckpointError:
        if engine.global_rank == 0:
            shutil.rmtree(directory, ignore_errors=True)
        raise


def write_files(engine: Engine, request: SaveRequest, directory: Path) -> dict[str, FileSum]:
    """Write this rank's files into `directory`; returns their checksums by name."""
    directory.mkdir(parents=True, exist_ok=True)  # rank 0 has made it; this asks the file server anew
    written: dict[str, FileSum] = {}
    weights = consolidated(engine.module, request.exclude_frozen_parameters, engine.global_rank == 0, False)
    optimizer = engine.optimizer
    if optimizer is not None and engine.global_rank < optimizer.sharding.num_shards:
        name = manifests.shard_name(optimizer.sharding.index, optimizer.sharding.num_shards)
        written[name] = _write_tensors(directory / name, shard_tensors(optimizer))
    if engine.global_rank == 0:
        tensors, extra = module_tensors(engine.module, weights)
        written[MODULE_FILE] = _write_tensors(directory / MODULE_FILE, tensors)
        content = {
            "client_state": dict(request.client_state),
            "loss_scaler": None if optimizer is None else optimizer.scaler_state(),
            "lr_scheduler": _scheduler_state(engine.lr_scheduler),
            "module_extra": extra,
        }
        (directory / STATE_FILE).write_bytes(_safe_pickle(content))
        written[STATE_FILE] = files.flush(directory / STATE_FILE)
    return written


def shard_tensors(optimizer: ShardedOptimizer) -> dict[str, torch.Tensor]:
    """This rank's fp32 state by bucket, each [S]."""
    return {
        tensor_name(number, kind): state.tensor(kind)
        for number, state in enumerate(optimizer.shards)
        for kind in state.kinds
    }


def tensor_name(bucket: int, kind: str) -> str:
    """The name of a state tensor in a shard file."""
    return f"bucket_{bucket:05d}.{kind}"


def module_tensors(
    module: torch.nn.Module, weights: Mapping[str, object]
) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """The tensors of the module's whole state dict, each once, and what else is in it."""
    aliases = tied_names(module)
    tensors: dict[str, torch.Tensor] = {}
    extra: dict[str, object] = {}
    for name, value in weights.items():
        if name in aliases:
            continue
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        else:
            extra[name] = value
    return tensors, extra


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


def _finish(
    engine: Engine, request: SaveRequest, directory: Path, gathered: list[dict[str, FileSum]]
) -> None:
    if engine.global_rank != 0:
        return
    sums: dict[str, FileSum] = {}
    for rank, written in enumerate(gathered):
        for name, expected in written.items():
            if not (directory / name).is_file():
                raise CheckpointError(
                    f"rank {rank} wrote {name}, but rank 0 does not see it in {directory}",
                    "save to a directory that all nodes share",
                )
            sums[name] = expected
    manifests.write(_manifest(engine, request.tag, sums), directory)
    files.flush(directory / manifests.NAME)
    files.commit(request.save_dir, request.tag, request.save_latest)
    _tell_progress(request.tag)


def _tell_progress(tag: str) -> None:
    """Name the newest whole checkpoint to who supervises this rank and asks for it by a variable."""
    told = os.environ.get("DSLAUNCH_PROGRESS_FILE")
    if told:
        with contextlib.suppress(OSError), open(told, "w") as file:  # a hint: the checkpoint is what counts
            file.write(tag)


def _manifest(engine: Engine, tag: str, sums: Mapping[str, FileSum]) -> Manifest:
    optimizer = engine.optimizer
    layout = None
    shapes: dict[str, tuple[int, ...]] = {}
    if optimizer is not None:
        layout = Layout(tuple(bucket.spec for bucket in optimizer.buckets), optimizer.sharding.num_shards)
        for bucket in optimizer.buckets:
            for slot, shape in zip(bucket.spec.slots, bucket.shapes, strict=True):
                shapes[slot.name] = tuple(shape)
    return Manifest(
        tag=tag,
        world_size=engine.world_size,
        zero_stage=engine.zero_optimization_stage(),
        dtype=engine.settings.dtype,
        counters=Counters(
            engine.global_steps,
            engine.global_samples,
            engine.skipped_steps,
            0 if optimizer is None else optimizer.num_applied,
        ),
        layout=layout,
        shapes=shapes,
        aliases=tied_names(engine.module),
        param_groups=hyperparameters(optimizer),
        files=sums,
    )


def _scheduler_state(scheduler: LrScheduler | None) -> object:
    return scheduler.state_dict() if scheduler is not None and hasattr(scheduler, "state_dict") else None


def _write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> FileSum:
    from safetensors.torch import save_file

    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    return files.flush(path)


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
