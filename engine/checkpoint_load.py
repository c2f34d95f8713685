"""Loading at any world size and stage: every rank reads the slices its own shard is made of, in place.

Legend: `S` elements of this rank's shard of a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from dslaunch.engine import checkpoint_find, log
from dslaunch.engine.buckets import Bucket, home_of
from dslaunch.engine.checkpoint_exchange import carry_out
from dslaunch.engine.checkpoint_find import Found
from dslaunch.engine.checkpoint_fit import check_fit, has_states
from dslaunch.engine.checkpoint_manifest import Manifest
from dslaunch.engine.checkpoint_source import (
    Fill,
    SavedState,
    fills_of,
    read_whole,
    stored_name,
    weight_fills,
)
from dslaunch.engine.masters import PIECE_NUMEL
from dslaunch.engine.optimizer import ShardedOptimizer
from dslaunch.engine.ranks import Ranks
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

    @property
    def wants_optimizer(self) -> bool:
        """Whether masters and states are asked for, and not only weights."""
        return self.optimizer_states and not self.module_only


def load(engine: Engine, request: LoadRequest) -> tuple[str, dict[str, object]] | tuple[None, None]:
    """Restore `engine`; (directory, client state), or (None, None) with a warning where no checkpoint is."""
    engine.saves.finish()
    ranks = engine.ranks
    ranks.enter("load_checkpoint")
    found = checkpoint_find.find(ranks, request.load_dir, request.tag, _trained(engine))
    if found is None:
        log.warn(
            engine.global_rank,
            f"no checkpoint is loaded: {request.load_dir / 'latest'} does not exist and no tag was given",
        )
        return None, None
    source = found.source
    try:
        ranks.settle(ranks.attempt(lambda: check_fit(engine, source.manifest, request)))
        state = found.state(ranks)
        engine.empty_partition_cache()
        _load_tensors(engine, request, found, state)
    finally:
        source.close()
    _load_progress(engine, request, found, state)
    return str(source.directory), state.client_state


def _trained(engine: Engine) -> list[list[str]] | None:
    """The names of the parameters of every group, in order."""
    if engine.zero_optimizer is None:
        return None
    return [
        [home.name for param in group["params"] if (home := home_of(param)) is not None]
        for group in engine.zero_optimizer.param_groups
    ]


@torch.no_grad()
def _load_tensors(engine: Engine, request: LoadRequest, found: Found, state: SavedState) -> None:
    """Weights; masters from them; then whatever the files know better; then parameters from masters."""
    optimizer, ranks = engine.zero_optimizer, engine.ranks
    restores = optimizer is not None and request.wants_optimizer and bool(found.source.manifest.param_groups)
    if request.custom_load_fn is not None:
        with GatheredParameters(engine.module.parameters(), modifier_rank=0):
            request.custom_load_fn(src=_whole_state_dict(found, state), dst=engine.module)
    else:
        _load_module(engine, found, state, leave_restored=restores)
    if optimizer is None:
        return
    optimizer.refresh_masters()
    optimizer.zero_grad()
    if restores:
        carry_out(found, ranks, _state_fills(optimizer, found))
        _load_split_masters(optimizer, found, ranks)
        _load_groups(optimizer, found)
        scaler = optimizer.policy.scaler
        if scaler is not None and state.loss_scaler:
            scaler.load_state_dict(state.loss_scaler)
    optimizer.publish()


def _load_module(engine: Engine, found: Found, state: SavedState, leave_restored: bool) -> None:
    """This rank's part of every parameter, and all buffers.

    `leave_restored`: not what masters will bring.
    """
    manifest = found.source.manifest
    fills: list[Fill] = []
    for bucket in (*engine.placement.trained, *engine.placement.frozen):
        for index, slot in enumerate(bucket.spec.slots):
            name = stored_name(manifest, slot.name)
            restored = leave_restored and has_states(manifest, bucket, slot.name)
            if name is not None and not restored:
                part, of_member = bucket.parts(index)
                fills += weight_fills(manifest, name, of_member.start, bucket.param_shard[part])
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # parameters that are not contiguous, from what is
    for full_name, param in engine.module.named_parameters():
        name = stored_name(manifest, full_name)
        if name is None or home_of(param) is not None:
            continue
        whole = param.data
        if not whole.is_contiguous():
            whole = torch.empty_like(whole, memory_format=torch.contiguous_format)
            copies.append((param.data, whole))
        fills += weight_fills(manifest, name, 0, whole.view(-1))
    params = {name for name, _ in engine.module.named_parameters(remove_duplicate=False)}
    rest: dict[str, object] = {}
    for full_name in engine.module.state_dict():
        name = stored_name(manifest, full_name)
        if name in manifest.whole and full_name not in params:
            assert name is not None
            entry = manifest.whole[name]
            value = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
            fills += weight_fills(manifest, name, 0, value.view(-1))
            rest[full_name] = value
        elif full_name in state.module_extra:
            rest[full_name] = state.module_extra[full_name]
    carry_out(found, engine.ranks, fills)
    for target, whole in copies:
        target.copy_(whole)
    engine.module.load_state_dict(rest, strict=False)


def _state_fills(optimizer: ShardedOptimizer, found: Found) -> list[Fill]:
    """What restores masters and states; those that the checkpoint has not start anew."""
    manifest = found.source.manifest
    fills: list[Fill] = []
    for bucket in optimizer.buckets:
        assert bucket.state is not None
        if not all(has_states(manifest, bucket, slot.name) for slot in bucket.spec.slots):
            bucket.state.restart()
        for name, part, start in _restored(bucket, manifest):
            for kind in bucket.state.kinds:
                if kind != "master" or not bucket.state.master.is_split:
                    fills += fills_of(manifest, name, kind, start, bucket.state.read(kind, part))
    return fills


def _load_split_masters(optimizer: ShardedOptimizer, found: Found, ranks: Ranks) -> None:
    """Those that are not in memory as files have them: read piece by piece, or where other ranks have to send
    something bucket by bucket. Collective.
    """
    manifest = found.source.manifest
    for bucket in optimizer.buckets:
        assert bucket.state is not None
        master = bucket.state.master
        if not master.is_split:
            continue
        pieces = [
            (name, slice(low, min(low + PIECE_NUMEL, part.stop)), start + low - part.start)
            for name, part, start in _restored(bucket, manifest)
            for low in range(part.start, part.stop, PIECE_NUMEL)
        ]
        for batch in [[piece] for piece in pieces] if found.everywhere else [pieces]:
            arrived = [torch.empty_like(master.kept[piece], dtype=torch.float32) for _, piece, _ in batch]
            fills: list[Fill] = []
            for (name, _, start), values in zip(batch, arrived, strict=True):
                fills += fills_of(manifest, name, "master", start, values)
            carry_out(found, ranks, fills)
            for (_, piece, _), values in zip(batch, arrived, strict=True):
                master.write(values, piece)


def _restored(bucket: Bucket, manifest: Manifest) -> Iterator[tuple[str, slice, int]]:
    """Of members whose states are in the checkpoint: stored name, part of the shard, its first element."""
    for index, slot in enumerate(bucket.spec.slots):
        name = stored_name(manifest, slot.name)
        if name is not None and has_states(manifest, bucket, slot.name):
            part, of_member = bucket.parts(index)
            yield name, part, of_member.start


def _whole_state_dict(found: Found, state: SavedState) -> dict[str, object]:
    """Everything a state dict of the saved module had, in memory."""
    source = found.source
    tensors: dict[str, object] = {
        name: read_whole(source, name) for name in (*source.manifest.params, *source.manifest.whole)
    }
    aliases = source.manifest.aliases.items()
    tensors.update({alias: tensors[name] for alias, name in aliases if name in tensors})
    return tensors | dict(state.module_extra)


def _load_groups(optimizer: ShardedOptimizer, found: Found) -> None:
    manifest = found.source.manifest
    optimizer.num_applied = manifest.counters.optimizer_steps
    if len(manifest.param_groups) == len(optimizer.param_groups):
        for group, saved in zip(optimizer.param_groups, manifest.param_groups, strict=True):
            for key, value in saved.items():
                group[key] = tuple(value) if isinstance(value, list) else value


def _load_progress(engine: Engine, request: LoadRequest, found: Found, state: SavedState) -> None:
    if request.module_only:
        return
    counters = found.source.manifest.counters
    engine.global_steps = counters.global_steps
    engine.global_samples = counters.global_samples
    engine.skipped_steps = counters.skipped_steps
    engine.loaded_checkpoint_dp_world_size = found.source.manifest.world_size
    engine.restart_accumulation()
    if request.lr_scheduler_states and state.lr_scheduler is not None and engine.lr_scheduler is not None:
        engine.lr_scheduler.load_state_dict(cast("dict[str, object]", state.lr_scheduler))
