"""One rank's part of an optimizer's state as a dict: what `optimizer.state_dict()` gives to scripts and to
Lightning. It goes back into the same layout only; `engine.save_checkpoint` is for all else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch

from dslaunch.engine.checkpoint_contents import hyperparameters
from dslaunch.engine.errors import EngineError

_ALL = slice(None)

if TYPE_CHECKING:
    from dslaunch.engine.optimizer import ShardedOptimizer


def local_state(optimizer: ShardedOptimizer) -> dict[str, object]:
    """Copies of this rank's masters and states by bucket, and the groups' hyperparameters. Plain types."""
    return {
        "state": {
            number: {kind: state.read(kind, _ALL).clone() for kind in state.kinds}
            for number, state in enumerate(optimizer.shards)
        },
        "param_groups": list(hyperparameters(optimizer)),
        "num_applied": optimizer.num_applied,
        "loss_scaler": optimizer.scaler_state(),
        "shard": [optimizer.sharding.index, optimizer.sharding.num_shards],
    }


@torch.no_grad()
def load_local_state(optimizer: ShardedOptimizer, saved: Mapping[str, object]) -> None:
    """Take back what `local_state` gave on this rank. Collective; EngineError where the layout is another."""
    shards = cast("Mapping[int, Mapping[str, torch.Tensor]]", saved.get("state", {}))
    _check(optimizer, saved, shards)
    for number, state in enumerate(optimizer.shards):
        for kind, value in shards[number].items():
            state.write(kind, value, _ALL)
    optimizer.num_applied = cast("int", saved["num_applied"])
    groups = cast("Sequence[Mapping[str, object]]", saved["param_groups"])
    for group, hyper in zip(optimizer.param_groups, groups, strict=True):
        group.update(hyper)
    scaler = optimizer.policy.scaler
    if scaler is not None and saved.get("loss_scaler") is not None:
        scaler.load_state_dict(cast("Mapping[str, float]", saved["loss_scaler"]))
    optimizer.publish()


def _check(
    optimizer: ShardedOptimizer,
    saved: Mapping[str, object],
    shards: Mapping[int, Mapping[str, torch.Tensor]],
) -> None:
    here = {
        number: dict.fromkeys(state.kinds, state.master.kept.shape)
        for number, state in enumerate(optimizer.shards)
    }
    there = {
        number: {kind: tensor.shape for kind, tensor in state.items()} for number, state in shards.items()
    }
    own = [optimizer.sharding.index, optimizer.sharding.num_shards]
    groups = cast("Sequence[object]", saved.get("param_groups", ()))
    if here != there or saved.get("shard") != own or len(groups) != len(optimizer.param_groups):
        raise EngineError(
            "the optimizer state is another model's, another rank's, or of another stage or world size",
            "use engine.save_checkpoint and engine.load_checkpoint, which reshard",
        )
