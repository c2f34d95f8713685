"""Runs on the ranks: saving and loading checkpoints."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checkpoint_engines import GLOBAL_BATCH, different, engine_of, state_of, train, unequal, whole_of
from equivalence_cases import Net

import dslaunch.engine as deepspeed
from dslaunch.engine.model_weights import consolidated


def resume_is_exact(directory: str, stage: int, bf16: bool, seed: int) -> None:
    """Train 3, save, train 3; a fresh engine with other weights loads and trains the same 3."""
    fp16 = "fp16" in directory
    engine = engine_of(stage, bf16, 1, fp16=fp16)
    train(engine, 3, seed)
    assert engine.save_checkpoint(directory, client_state={"step": 3, "best": [0.5, None]})
    expected = train(engine, 3, seed + 1)
    fresh = engine_of(stage, bf16, 3, fp16=fp16)
    path, client_state = fresh.load_checkpoint(directory)
    assert (path, client_state) == (f"{directory}/global_step3", {"step": 3, "best": [0.5, None]})
    assert train(fresh, 3, seed + 1) == expected
    assert unequal(state_of(engine), state_of(fresh)) == []
    for name in ("global_steps", "global_samples", "skipped_steps"):
        assert getattr(fresh, name) == getattr(engine, name), name
    assert fresh.get_lr() == engine.get_lr()
    assert fresh.loss_scale() == engine.loss_scale()
    train(engine, 1, seed)  # in the middle of other training, over its own state
    engine.load_checkpoint(directory, tag="global_step3")
    assert train(engine, 3, seed + 1) == expected


def save_all(directory: str, seed: int) -> None:
    """One checkpoint of every stage and dtype at this world size, and beside it what it must bring back."""
    world = dist.get_world_size()
    for stage in range(4):
        for dtype in ("fp32", "bf16", "fp16"):
            tag = f"{dtype}-stage{stage}-world{world}"
            engine = engine_of(stage, dtype == "bf16", 1, fp16=dtype == "fp16")
            train(engine, 2, seed + 10 * world + stage)
            engine.save_checkpoint(directory, tag=tag, client_state={"tag": tag})
            whole = whole_of(engine)
            if dist.get_rank() == 0:
                torch.save(whole, f"{directory}/{tag}.expected")


def load_all(directory: str, seed: int | None) -> tuple[int, list[str]]:
    """Each of them into an engine of every stage and other buckets; how many, and what was wrong.

    With a seed each engine loads one chosen stage of every world size, without one all.
    """
    wrong = []
    choose = random.Random(seed)
    num_loads = 0
    for stage in range(4):
        for dtype in ("fp32", "bf16", "fp16"):
            engine = engine_of(stage, dtype == "bf16", 2, fp16=dtype == "fp16")
            stages = [choose.randrange(4)] if seed is not None else list(range(4))
            for tag in (f"{dtype}-stage{s}-world{world}" for s in stages for world in range(1, 5)):
                expected = torch.load(f"{directory}/{tag}.expected")
                assert engine.load_checkpoint(directory, tag) == (f"{directory}/{tag}", {"tag": tag})
                wrong += [f"{tag} at stage {stage}: {name}" for name in different(whole_of(engine), expected)]
                num_loads += 1
            train(engine, 1, 0)  # it can go on
    return num_loads, wrong


def save(directory: str, stage: int, bf16: bool, seed: int) -> dict[str, torch.Tensor]:
    engine = engine_of(stage, bf16, 1)
    train(engine, 2, seed)
    engine.save_checkpoint(directory, tag=f"world{dist.get_world_size()}", client_state={"seed": seed})
    return state_of(engine)


def load(directory: str, tag: str, stage: int, bf16: bool) -> None:
    engine_of(stage, bf16, 2).load_checkpoint(directory, tag)


def background(directory: str, stage: int, seed: int) -> None:
    """Saves with `checkpoint.async`: what is kept is the state at the call, whatever training does then."""
    engine = engine_of(stage, True, 1, checkpoint={"async": True})
    for _ in range(2):
        train(engine, 1, seed)
        before = state_of(engine)
        engine.save_checkpoint(directory)
        train(engine, 2, seed + 1)
        after = state_of(engine)
        engine.load_checkpoint(directory)  # waits for the save
        assert unequal(before, state_of(engine)) == []
        assert unequal(before, after) != []
    engine.destroy()


def keep_last(directory: str) -> None:
    engine = engine_of(1, False, 1, checkpoint={"keep_last": 2})
    for step in (1, 2, 3, 4):
        engine.global_steps = step
        engine.save_checkpoint(directory)
        if step == 2:
            engine.save_checkpoint(directory, tag="best", save_latest=False)


def on_nodes(directory: str, num_nodes: int, seed: int) -> list[str]:
    """Ranks on as many nodes as there are, each with storage of its own; load at other world sizes too."""
    rank, world = dist.get_rank(), dist.get_world_size()
    os.environ["DSLAUNCH_HOST"] = f"host{rank * num_nodes // world}"
    local = f"{directory}/{os.environ['DSLAUNCH_HOST']}"
    try:
        wrong = []
        for stage in (0, 2, 3):
            engine = engine_of(stage, True, 1)
            train(engine, 2, seed + stage)
            engine.save_checkpoint(local, tag=f"stage{stage}", client_state={"stage": stage})
            expected = whole_of(engine)
            for other in (1, 3):
                fresh = engine_of(other, True, 2)
                assert fresh.load_checkpoint(local)[1] == {"stage": stage}
                wrong += [f"{stage} to {other}: {name}" for name in different(whole_of(fresh), expected)]
        return wrong
    finally:
        del os.environ["DSLAUNCH_HOST"]


def parts(directory: str, seed: int) -> None:
    """What each flag of load_checkpoint takes and leaves."""
    engine = engine_of(1, True, 1)
    train(engine, 3, seed)
    engine.save_checkpoint(directory, save_latest=False, tag=7)
    assert engine_of(1, True, 1).load_checkpoint(directory) == (None, None)
    saved = state_of(engine)

    module_only = engine_of(1, True, 3)
    module_only.load_checkpoint(directory, "7", load_module_only=True)
    loaded = state_of(module_only)
    assert {name.split(".")[0] for name in unequal(saved, loaded)} == {"master", "exp_avg", "exp_avg_sq"}
    assert all(
        torch.equal(value, loaded[f"module.{name.removeprefix('master.')}"].float())
        for name, value in loaded.items()
        if name.startswith("master.")
    )
    assert (module_only.global_steps, module_only.get_lr()) == (0, [0.0, 0.0])

    weights = engine_of(1, True, 3)
    weights.load_checkpoint(directory, 7, load_optimizer_states=False, load_lr_scheduler_states=False)
    assert weights.global_steps == 3
    assert weights.get_lr() == [0.0, 0.0]
    assert weights.optimizer is not None
    assert weights.optimizer.num_applied == 0

    def custom(src: dict[str, torch.Tensor], dst: torch.nn.Module) -> None:
        dst.load_state_dict({name: torch.zeros_like(value) for name, value in src.items()})

    zeros = engine_of(1, True, 3)
    zeros.load_checkpoint(directory, "7", load_module_only=True, custom_load_fn=custom)
    assert not any(param.any() for param in zeros.parameters())


def frozen_parameters_can_be_left_out(directory: str) -> None:
    engine = engine_of(1, False, 1)
    engine.save_checkpoint(directory, exclude_frozen_parameters=True)
    fresh = engine_of(1, False, 3)
    with pytest.raises(
        deepspeed.CheckpointError, match=r"Missing key\(s\) in state_dict: \"inner.weight\""
    ) as caught:
        fresh.load_checkpoint(directory)
    assert "pass load_module_strict=False" in caught.value.hint
    fresh.load_checkpoint(directory, load_module_strict=False)
    a, b = state_of(engine), state_of(fresh)
    assert set(unequal(a, b)) == {"module.inner.weight"}


def steps_of_a_linear(directory: str) -> int:
    config = {"train_batch_size": 1, "optimizer": {"type": "Adam"}, "log_level": "error"}
    engine = deepspeed.initialize(model=torch.nn.Linear(64, 64), config=config)[0]
    _, client_state = engine.load_checkpoint(directory)
    assert client_state == {"step": engine.global_steps}
    return engine.global_steps


def without_an_optimizer(directory: str) -> list[str]:
    """A trained checkpoint into engines that only run the model, and what such a one saves into another."""
    trained = engine_of(2, True, 1)
    train(trained, 2, 5)
    trained.save_checkpoint(directory, tag="trained")
    expected = consolidated(trained.module, False, True)
    wrong = []
    for stage in (0, 3):
        torch.manual_seed(9)
        model = Net(("tied", "frozen"))
        model.register_buffer("seen", torch.zeros(3))
        config = {
            "train_batch_size": GLOBAL_BATCH,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
            "log_level": "error",
        }
        engine = deepspeed.initialize(model=model, config=config)[0]
        for tag in ("trained", f"run{3 - stage}"):
            if tag == "trained" or Path(directory, tag).exists():
                engine.load_checkpoint(directory, tag)
                found = consolidated(engine.module, False, True)
                wrong += [f"{stage} from {tag}: {name}" for name in different(expected, found)]
        engine.save_checkpoint(directory, tag=f"run{stage}")
        dist.barrier()
    return wrong
