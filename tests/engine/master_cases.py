"""Runs on the ranks: training with split masters and with whole ones, bit by bit."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from equivalence_cases import FEATURES, Net, chunk, full_state, loss_of
from equivalence_cases import Case as Shape

import dslaunch.engine as deepspeed
from dslaunch.engine import bucket_steps
from dslaunch.engine.errors import EngineError
from dslaunch.engine.safe_access import safe_get_full_fp32_param, safe_set_full_fp32_param

NUM_STEPS = 21
RULES: dict[str, dict[str, object]] = {
    "AdamW": {"weight_decay": 0.1},
    "Adam": {"adam_w_mode": False, "weight_decay": 0.1},
    "Lion": {"weight_decay": 0.1},
    "Adagrad": {},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Muon": {},  # of which only what AdamW steps is split
}


def engine_of(rule: str, stage: int, accumulation: int, clipping: float, split: bool) -> deepspeed.Engine:
    """The same each time; whole masters are those that a step would keep which cannot split them."""
    model = Net(("tied", "unused", "frozen"))
    config = {
        "train_batch_size": 12,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clipping,
        "optimizer": {"type": rule, "params": {"lr": 0.01, **RULES[rule]}},
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 600,
            "stage3_param_persistence_threshold": 20,
            "stage3_max_live_parameters": 100,
        },
        "log_level": "error",
    }
    if split:
        return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    with mock.patch.object(bucket_steps, "splits_masters", return_value=False):
        return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def train(engine: deepspeed.Engine, steps: range) -> list[float]:
    accumulation = engine.gradient_accumulation_steps()
    shape = Shape("", 0, bf16=True, accumulation=accumulation)
    losses = []
    for step in steps:
        data = torch.randn(12, FEATURES, generator=torch.Generator().manual_seed(step)).bfloat16()
        for micro in range(accumulation):
            x = chunk(data, shape, engine.world_size, engine.global_rank, micro)
            loss = loss_of(engine, x, engine.global_rank)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


def all_of(engine: deepspeed.Engine) -> dict[str, torch.Tensor]:
    """Masters and states by name, as bits. Collective."""
    assert engine.optimizer is not None
    kinds = dict.fromkeys(kind for state in engine.optimizer.shards for kind in state.kinds)
    found: dict[str, torch.Tensor] = {}
    for kind in kinds:
        if all(kind in state.kinds for state in engine.optimizer.shards):
            found |= {f"{kind} {name}": t.view(torch.int32) for name, t in full_state(engine, kind).items()}
    with deepspeed.zero.GatheredParameters(engine.module.parameters()):
        for name, param in engine.module.named_parameters():
            found[name] = param.detach().view(torch.int16).clone()
    return found


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def split_masters_train_as_whole_ones(stage: int, seed: int) -> None:
    for number, rule in enumerate(RULES):
        accumulation, clipping = ((1, 0.0), (3, 0.5))[(number + stage + dist.get_world_size()) % 2]
        told = f"{rule}, accumulation {accumulation}, clipping {clipping}, seed {seed}"
        runs = []
        for split in (True, False):
            torch.manual_seed(seed)
            engine = engine_of(rule, stage, accumulation, clipping, split)
            assert engine.optimizer is not None
            kept = {state.master.is_split for state in engine.optimizer.shards}
            assert kept == ({True, False} if split and rule == "Muon" else {split}), told
            runs.append((train(engine, range(NUM_STEPS)), all_of(engine)))
        assert runs[0][0] == runs[1][0], told
        assert same(runs[0][1], runs[1][1]), told


def checkpoints_go_from_one_to_the_other(directory: str, stage: int, seed: int) -> None:
    """Bit for bit, and on to the same steps; written at once and through a copy."""
    for split in (True, False):
        torch.manual_seed(seed)
        saved = engine_of("AdamW", stage, 1, 0.5, split)
        train(saved, range(3))
        path = Path(directory) / str(split)
        saved.save_checkpoint(path)
        before = all_of(saved)
        losses = train(saved, range(3, 6))
        for other_stage in (stage, 3 - stage):
            loaded = engine_of("AdamW", other_stage, 1, 0.5, not split)
            loaded.load_checkpoint(path)
            assert same(before, all_of(loaded)), (split, other_stage, seed)
            if other_stage == stage:
                assert train(loaded, range(3, 6)) == losses


def edits_keep_what_is_beyond_bf16(stage: int) -> None:
    """safe_set takes any fp32 value; what a script writes into parameters starts with nothing beyond it."""
    engine = engine_of("AdamW", stage, 1, 0.0, True)
    param = engine.module.middle.weight
    value = torch.randn(17, 17, generator=torch.Generator().manual_seed(1))
    safe_set_full_fp32_param(param, value)
    found = safe_get_full_fp32_param(param)
    assert found is not None
    assert torch.equal(found, value)
    with deepspeed.zero.GatheredParameters([param], modifier_rank=0):
        assert torch.equal(param.detach(), value.bfloat16())
        if dist.get_rank() == 0:
            param.data.fill_(0.3)
    found = safe_get_full_fp32_param(param)
    assert found is not None
    assert torch.equal(found, torch.full((17, 17), 0.3).bfloat16().float())
    engine.offload_states(include=["lp_params"])
    with pytest.raises(EngineError, match="while lp_params are offloaded"):
        safe_get_full_fp32_param(param)
    engine.reload_states()
    found = safe_get_full_fp32_param(param)
    assert found is not None
