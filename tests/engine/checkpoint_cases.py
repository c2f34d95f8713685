"""Runs on the ranks: saving and loading checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from equivalence_cases import FEATURES, Net, full_state

import dslaunch.engine as deepspeed
from dslaunch.engine import checkpoint_files, checkpoint_save
from dslaunch.engine.model_weights import consolidated

GLOBAL_BATCH = 8


def engine_of(
    stage: int, bf16: bool, init_seed: int, flags: tuple[str, ...] = ("tied", "frozen"), fp16: bool = False
) -> deepspeed.Engine:
    torch.manual_seed(init_seed)
    model = Net(flags)
    model.register_buffer("seen", torch.full((3,), float(init_seed)))
    small = [p for p in model.parameters() if p.dim() <= 1]
    large = [p for p in model.parameters() if p.dim() > 1]
    return deepspeed.initialize(
        model=model,
        model_parameters=[{"params": large, "weight_decay": 0.1}, {"params": small, "lr": 0.002}],
        config={
            "train_batch_size": GLOBAL_BATCH,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 6}},
            "bf16": {"enabled": bf16},
            "fp16": {"enabled": fp16, "loss_scale_window": 1, "initial_scale_power": 4},
            "zero_optimization": {
                "stage": stage,
                "reduce_bucket_size": 400 if init_seed % 2 else 5e8,
                "stage3_param_persistence_threshold": 20 if init_seed % 2 else 300,
            },
            "log_level": "error",
        },
    )[0]


def train(engine: deepspeed.Engine, num_steps: int, seed: int) -> list[float]:
    """The same global batches at every world size; returns this rank's losses."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(engine.parameters()).dtype
    losses = []
    for _ in range(num_steps * 2):
        half = torch.randn(GLOBAL_BATCH // 2, FEATURES, generator=generator).to(dtype)
        size = len(half) // engine.world_size
        x = half.to(next(engine.parameters()).device)[
            engine.global_rank * size : (engine.global_rank + 1) * size
        ]
        loss = (engine(x, 0).float() - x.float().square()).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def state_of(engine: deepspeed.Engine) -> dict[str, torch.Tensor]:
    """Everything training depends on, whole, on every rank. Collective."""
    found = {
        f"module.{name}": value.clone() for name, value in consolidated(engine.module, False, True).items()
    }
    for kind in ("master", "exp_avg", "exp_avg_sq"):
        found.update({f"{kind}.{name}": value for name, value in full_state(engine, kind).items()})
    return found


def unequal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


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


def save(directory: str, stage: int, bf16: bool, seed: int) -> dict[str, torch.Tensor]:
    engine = engine_of(stage, bf16, 1)
    train(engine, 2, seed)
    engine.save_checkpoint(directory, tag=f"world{dist.get_world_size()}", client_state={"seed": seed})
    return state_of(engine)


def load(
    directory: str, tag: str, stage: int, bf16: bool
) -> tuple[dict[str, torch.Tensor], list[float], object]:
    """Into an engine of other buckets; what it holds, the rates, and the client state."""
    engine = engine_of(stage, bf16, 2)
    _, client_state = engine.load_checkpoint(directory, tag)
    assert engine.optimizer is not None
    assert engine.optimizer.num_applied == 2
    state = state_of(engine)
    train(engine, 1, 0)
    return state, engine.get_lr(), client_state


def refuse_to_load(directory: str, **options: bool) -> tuple[str, list[str]]:
    """The words of the error, and which state has changed in spite of it."""
    engine = engine_of(1, False, 1)
    before = state_of(engine)
    with pytest.raises(deepspeed.CheckpointError) as caught:
        engine.load_checkpoint(directory, **options)
    return str(caught.value), unequal(before, state_of(engine))


def die_while_saving(directory: str, seed: int) -> None:
    """Save once; then write all files of a second checkpoint and die before it is put into place."""
    engine = engine_of(1, False, 1)
    train(engine, 2, seed)
    engine.save_checkpoint(directory)
    train(engine, 1, seed)
    request = checkpoint_save.SaveRequest(Path(directory), "global_step2", {}, True, False)
    target = checkpoint_files.saving_dir(request.save_dir, request.tag)
    if dist.get_rank() == 0:
        checkpoint_files.fresh_dir(target)
    dist.barrier()
    checkpoint_save.write_files(engine, request, target)
    dist.barrier()
    os._exit(9)


def loads_what_was_saved_last(directory: str, seed: int) -> int:
    """Load, check against training anew, save again over the remains."""
    engine = engine_of(1, False, 3)
    engine.load_checkpoint(directory)
    twin = engine_of(1, False, 1)
    train(twin, 2, seed)
    assert unequal(state_of(engine), state_of(twin)) == []
    train(engine, 1, seed)
    engine.save_checkpoint(directory, tag="global_step2")
    fresh = engine_of(0, False, 3)
    fresh.load_checkpoint(directory)
    assert unequal(state_of(engine), state_of(fresh)) == []
    return fresh.global_steps


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


def refuse_to_save(directory: str) -> list[str]:
    engine = engine_of(1, False, 1)
    said = []
    bad_states: list[dict[str, object]] = [{"x": pytest.raises}, {}]
    for number, state in enumerate(bad_states):
        tag = "ok" if number == 0 else f"rank{dist.get_rank()}"
        with pytest.raises(deepspeed.CheckpointError) as caught:
            engine.save_checkpoint(directory, tag=tag, client_state=state)
        said.append(caught.value.what)
    for tag in ("a/b", ".hidden"):
        with pytest.raises(deepspeed.CheckpointError) as caught:
            engine.save_checkpoint(directory, tag=tag)
        said.append(caught.value.what)
    return said


def a_disk_that_refuses(directory: str) -> str:
    """The directory to save to lies below a file."""
    engine = engine_of(1, False, 1)
    with pytest.raises(deepspeed.CheckpointError) as caught:
        engine.save_checkpoint(directory)
    return caught.value.what


def steps_of_a_linear(directory: str) -> int:
    config = {"train_batch_size": 1, "optimizer": {"type": "Adam"}, "log_level": "error"}
    engine = deepspeed.initialize(model=torch.nn.Linear(64, 64), config=config)[0]
    _, client_state = engine.load_checkpoint(directory)
    assert client_state == {"step": engine.global_steps}
    return engine.global_steps
