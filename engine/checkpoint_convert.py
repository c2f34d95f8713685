"""Checkpoints from DeepSpeed's format to ours, and from ours to DeepSpeed's (ZeRO 2), part by part.

What DeepSpeed's own reader needs of its format: `param_shapes` of torch.Size in the order of the flat groups;
per rank `single_partition_of_fp32_groups`, the last one without padding; `partition_count`, `zero_stage`.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from dslaunch.engine import checkpoint_files as files
from dslaunch.engine import checkpoint_manifest as manifests
from dslaunch.engine.checkpoint_files import FileSum
from dslaunch.engine.checkpoint_manifest import FROZEN, Manifest, ParamEntry
from dslaunch.engine.checkpoint_source import SavedState, Source, fills_of, read_whole
from dslaunch.engine.layout import Piece, even_part, round_up
from dslaunch.engine.tensor_files import Deferred, dtype_named, write_tensors


def to_native(source: Source, target_dir: Path, tag: str, num_files: int) -> Path:
    """Write our format with `num_files` tensor files into `target_dir/tag`; returns that."""
    directory = files.saving_dir(target_dir, files.checked_tag(tag))
    files.fresh_dir(directory)
    manifest = _native_manifest(source.manifest, tag, num_files)
    sums = {
        manifest.shards[index]: write_tensors(
            directory / manifest.shards[index], dict(_native_tensors(source, manifest, index))
        )
        for index in range(num_files)
    }
    sums[manifests.STATE_FILE] = _write_state(source.state(), directory / manifests.STATE_FILE)
    manifests.write(replace(manifest, files=sums), directory)
    return files.commit(target_dir, tag, save_latest=True)


def _native_manifest(manifest: Manifest, tag: str, num_files: int) -> Manifest:
    params: dict[str, ParamEntry] = {}
    for number, (name, entry) in enumerate(manifest.params.items()):
        numel = sum(piece.numel for piece in entry.pieces)
        parts = [even_part(numel, num_files, index) for index in range(num_files)]
        pieces = tuple(
            Piece(index, f"param_{number:05d}", 0, len(part)) for index, part in enumerate(parts) if len(part)
        )
        params[name] = replace(entry, pieces=pieces)
    return replace(
        manifest,
        tag=tag,
        shards=tuple(manifests.shard_name(index, num_files) for index in range(num_files)),
        params=params,
        whole={name: replace(entry, file=0) for name, entry in manifest.whole.items()},
    )


def _native_tensors(source: Source, manifest: Manifest, index: int) -> Iterator[tuple[str, Deferred]]:
    for name, entry in manifest.params.items():
        low = 0
        for piece in entry.pieces:
            if piece.file == index:
                for kind in manifest.kinds_of(name):
                    dtype = dtype_named(entry.dtype) if kind == manifests.PARAM else torch.float32
                    yield f"{piece.tensor}.{kind}", _part(source, name, kind, low, piece.numel, dtype)
            low += piece.numel
    for name, whole in manifest.whole.items():
        if whole.file == index:
            pieces = partial(map, partial(read_whole, source), [name])
            yield manifests.whole_tensor(name), Deferred(dtype_named(whole.dtype), whole.shape, pieces)


def _part(source: Source, name: str, kind: str, low: int, numel: int, dtype: torch.dtype) -> Deferred:
    return Deferred(
        dtype, (numel,), lambda: [_read(source, name, kind, low, torch.empty(numel, dtype=dtype))]
    )


def _read(source: Source, name: str, kind: str, low: int, out: torch.Tensor) -> torch.Tensor:
    for fill in fills_of(source.manifest, name, kind, low, out):
        source.read(fill)
    return out


def _write_state(state: SavedState, path: Path) -> FileSum:
    buffer = io.BytesIO()
    torch.save(
        {
            "client_state": state.client_state,
            "loss_scaler": None if state.loss_scaler is None else dict(state.loss_scaler),
            "lr_scheduler": state.lr_scheduler,
            "module_extra": dict(state.module_extra),
        },
        buffer,
    )
    return files.write(path, buffer.getvalue())


def to_deepspeed(source: Source, target_dir: Path, tag: str, num_ranks: int) -> Path:
    """Write DeepSpeed's format, as `num_ranks` ranks of ZeRO 2 would, into `target_dir/tag`; returns that.

    One rank's optimizer state is in memory at a time, and the weights in the model's dtype.
    """
    manifest = source.manifest
    directory = files.saving_dir(target_dir, files.checked_tag(tag))
    files.fresh_dir(directory)
    groups = [
        [name for name, entry in manifest.params.items() if entry.group == number]
        for number in range(len(manifest.param_groups))
    ]
    _save(_model_file(source, groups, num_ranks), directory / "mp_rank_00_model_states.pt")
    prefix = "bf16_" if manifest.dtype == "bf16" else ""
    for rank in range(num_ranks) if groups else ():
        name = f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        _save(_optimizer_file(source, groups, rank, num_ranks), directory / name)
    return files.commit(target_dir, tag, save_latest=True)


def _save(content: object, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(content, file)
    files.flush(path)


def _model_file(source: Source, groups: list[list[str]], num_ranks: int) -> dict[str, object]:
    manifest, state = source.manifest, source.state()
    module: dict[str, object] = {name: read_whole(source, name) for name in manifest.params}
    module |= {name: read_whole(source, name) for name in manifest.whole}
    module |= {alias: module[name] for alias, name in manifest.aliases.items() if name in module}
    frozen = {
        name: module[name]
        for name in (*manifest.params, *manifest.whole)
        if _is_frozen(manifest, name) and isinstance(module[name], torch.Tensor)
    }
    counters = manifest.counters
    return {
        **state.client_state,
        "module": OrderedDict(module | dict(state.module_extra)),
        "buffer_names": [name for name, entry in manifest.whole.items() if not entry.is_param],
        "optimizer": None,
        "param_shapes": [
            OrderedDict((name, torch.Size(manifest.params[name].shape)) for name in names) for names in groups
        ],
        "frozen_param_shapes": OrderedDict((name, torch.Size(value.shape)) for name, value in frozen.items()),  # type: ignore[attr-defined]
        "frozen_param_fragments": OrderedDict(frozen),
        "shared_params": dict(manifest.aliases),
        "lr_scheduler": state.lr_scheduler,
        "data_sampler": None,
        "random_ltd": None,
        "skipped_steps": counters.skipped_steps,
        "global_steps": counters.global_steps,
        "global_samples": counters.global_samples,
        "dp_world_size": num_ranks,
        "mp_world_size": 1,
        "ds_config": {},
        "ds_version": "0.19.8",
    }


def _is_frozen(manifest: Manifest, name: str) -> bool:
    if name in manifest.params:
        return manifest.params[name].group == FROZEN
    return manifest.whole[name].is_param


def _optimizer_file(source: Source, groups: list[list[str]], rank: int, num_ranks: int) -> dict[str, object]:
    manifest = source.manifest
    masters: list[torch.Tensor] = []
    states: dict[int, dict[str, object]] = {}
    paddings: list[int] = []
    for number, names in enumerate(groups):
        sizes = [sum(piece.numel for piece in manifest.params[name].pieces) for name in names]
        total = sum(sizes)
        part = max(round_up(total, 2 * num_ranks) // num_ranks, 1)
        own = min(max(total - rank * part, 0), part)
        masters.append(_flat_part(source, names, sizes, "master", rank * part, own))
        states[number] = {"step": torch.tensor(float(manifest.counters.optimizer_steps))}
        for kind in manifest.kinds[number][1:]:
            padded = torch.zeros(part)
            padded[:own] = _flat_part(source, names, sizes, kind, rank * part, own)
            states[number][kind] = padded
        paddings.append(part - own)
    param_groups = [{**group, "params": [number]} for number, group in enumerate(manifest.param_groups)]
    scaler = source.state().loss_scaler
    return {
        "optimizer_state_dict": {
            "zero_stage": 2,
            "partition_count": [num_ranks] * len(groups),
            "single_partition_of_fp32_groups": masters,
            "base_optimizer_state": {"state": states, "param_groups": param_groups},
            "group_paddings": paddings,
            "dynamic_loss_scale": scaler is not None,
            "overflow": False,
            "clip_grad": 0.0,
            "ds_version": "0.19.8",
            **_scaler_keys(scaler),
        },
        "ds_config": {},
        "ds_version": "0.19.8",
    }


def _scaler_keys(scaler: Mapping[str, float] | None) -> dict[str, object]:
    """DeepSpeed's names, beside each other: its own object would have to be a pickled class."""
    if scaler is None:
        return {}
    return {
        "cur_scale": scaler["scale"],
        "cur_hysteresis": scaler["hysteresis_left"],
        "cur_iter": scaler["num_steps"],
        "last_overflow_iter": scaler["last_overflow"],
    }


def _flat_part(
    source: Source, names: list[str], sizes: list[int], kind: str, start: int, numel: int
) -> torch.Tensor:
    """Elements [start, start + numel) of the group's flat vector."""
    flat = torch.zeros(numel)
    at = 0
    for name, size in zip(names, sizes, strict=True):
        low, high = max(at, start), min(at + size, start + numel)
        if low < high:
            _read(source, name, kind, low - at, flat[low - start : high - start])
        at += size
    return flat
