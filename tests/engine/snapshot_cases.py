"""Runs on the ranks: what training and scripts change right after a save in the background has begun."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import torch
from checkpoint_engines import different, engine_of, train, whole_of

import dslaunch.engine as deepspeed
from dslaunch.engine import safe_access
from dslaunch.engine.buckets import ShardState
from dslaunch.engine.checkpoint_snapshot import Snapshot, SnapshotMemory
from dslaunch.engine.lanes import StreamLane
from dslaunch.engine.model_weights import consolidated
from dslaunch.engine.tensor_files import Deferred
from dslaunch.engine.zero import GatheredParameters


class LateMemory(SnapshotMemory):
    """Its snapshots copy nothing by themselves before `go`: only what is claimed is copied until then."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def begin(
        self, tensors: Mapping[str, torch.Tensor | Deferred], states: Mapping[str, ShardState]
    ) -> Snapshot:
        if torch.cuda.is_available():  # what nobody waits for is copied tens of milliseconds later
            self._lane = StreamLane(torch.device("cuda", torch.cuda.current_device()))
            self._lane.run(lambda: torch.cuda._sleep(100_000_000))
        snapshot = super().begin(tensors, states)
        finish = snapshot.finish

        def late() -> None:
            assert self.go.wait(60)
            finish()

        snapshot.finish = late  # type: ignore[method-assign]
        return snapshot


def trained(engine: deepspeed.Engine) -> torch.nn.Parameter:
    return next(param for param in engine.module.parameters() if param.requires_grad)


def set_master(engine: deepspeed.Engine) -> None:
    param = trained(engine)
    whole = safe_access.safe_get_full_fp32_param(param)
    assert whole is not None
    safe_access.safe_set_full_fp32_param(param, whole + 1)


def set_state(engine: deepspeed.Engine) -> None:
    param = trained(engine)
    whole = safe_access.safe_get_full_optimizer_state(param, "exp_avg")
    assert whole is not None
    safe_access.safe_set_full_optimizer_state(param, whole + 1, "exp_avg")


def set_own_part(engine: deepspeed.Engine) -> None:
    param = trained(engine)
    part = safe_access.safe_get_local_fp32_param(param)
    assert part is not None
    safe_access.safe_set_local_fp32_param(param, part + 1)


@torch.no_grad()
def edit_gathered(engine: deepspeed.Engine) -> None:
    with GatheredParameters(list(engine.module.parameters()), modifier_rank=0):
        for param in engine.module.parameters():
            param.add_(1)


@torch.no_grad()
def edit_module(engine: deepspeed.Engine) -> None:
    """What a script may do at any time, with no call of the engine."""
    for tensor in (*engine.module.parameters(), *engine.module.buffers()):
        if tensor.numel():
            tensor.add_(1)


def load_weights(engine: deepspeed.Engine) -> None:
    ones = {name: torch.ones_like(value) for name, value in consolidated(engine.module, False, True).items()}
    engine.load_module_state_dict(ones)


def refresh(engine: deepspeed.Engine) -> None:
    edit_module(engine)
    assert engine.optimizer is not None
    engine.optimizer.refresh_masters()


def load_optimizer(engine: deepspeed.Engine) -> None:
    assert engine.optimizer is not None
    state = engine.optimizer.state_dict()
    for kinds in state["state"].values():  # type: ignore[attr-defined]
        for value in kinds.values():
            value.add_(1)
    engine.optimizer.load_state_dict(state)


CHANGES: tuple[Callable[[deepspeed.Engine], object], ...] = (
    lambda engine: train(engine, 1, 9),
    set_master,
    set_state,
    set_own_part,
    edit_gathered,
    edit_module,
    load_weights,
    refresh,
    load_optimizer,
)


def changes_come_after_the_snapshot(directory: str, stage: int, dtype: str, offload: bool) -> list[str]:
    """What of each checkpoint is not of the moment of the call."""
    more = {"offload_optimizer": {"device": "cpu"}} if offload else {}
    engine = engine_of(stage, dtype == "bf16", 1, checkpoint={"async": True}, zero=more)
    train(engine, 2, 7)
    wrong = []
    for number, change in enumerate(CHANGES):
        memory = engine.saves._memory = LateMemory()
        before = whole_of(engine)
        engine.save_checkpoint(directory, tag=f"it{number}")
        change(engine)
        after = whole_of(engine)
        memory.go.set()
        engine.load_checkpoint(directory, tag=f"it{number}")
        if stage < 3 or change is not edit_module:  # shards are out of a script's reach
            assert different(before, after) != [], number
        wrong += [f"{number}: {name}" for name in different(before, whole_of(engine))]
    engine.destroy()
    return wrong
