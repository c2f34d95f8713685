"""Runs on the ranks: every optimizer under the engine, against torch on one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from engine_cases import net

import dslaunch.engine as deepspeed
from dslaunch.engine.errors import CheckpointError

NUM_STEPS = 4


def engine_of(kind: str, params: dict[str, object], stage: int) -> deepspeed.Engine:
    torch.manual_seed(7)
    model = net()
    config: dict[str, object] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.5,
        "optimizer": {"type": kind, "params": params},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 64},
        "steps_per_print": 1,
    }
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2 * dist.get_world_size(), 4, generator=generator)


def train(engine: deepspeed.Engine, steps: range) -> list[torch.Tensor]:
    rank = dist.get_rank()
    for step in steps:
        engine.backward(engine(batch(step)[2 * rank : 2 * rank + 2]).square().mean())
        engine.step()
    with deepspeed.zero.GatheredParameters(engine.module.parameters()):
        return [param.detach().clone() for param in engine.module.parameters()]


def trains_as_torch(kind: str, params: dict[str, object], stage: int) -> None:
    found = train(engine_of(kind, params, stage), range(NUM_STEPS))
    torch.manual_seed(7)
    model = net()
    oracle = getattr(torch.optim, kind)(model.parameters(), **params)
    for step in range(NUM_STEPS):
        oracle.zero_grad()
        model(batch(step)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        oracle.step()
    for ours, theirs in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-5)


def client_trains_as_torch(kind: str, params: dict[str, object], stage: int) -> None:
    """An optimizer object of the script's is as good as one that the config names."""
    torch.manual_seed(7)
    model = net()
    client = getattr(torch.optim, kind)(model.parameters(), **params)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage},
    }
    engine = deepspeed.initialize(model=model, optimizer=client, config=config)[0]
    found = train(engine, range(NUM_STEPS))
    for ours, named in zip(found, train(engine_of(kind, params, stage), range(NUM_STEPS)), strict=True):
        torch.testing.assert_close(ours, named, rtol=1e-5, atol=1e-6)


def resumes(kind: str, params: dict[str, object], stage: int, directory: str) -> None:
    whole = train(engine_of(kind, params, stage), range(NUM_STEPS))
    first = engine_of(kind, params, stage)
    train(first, range(2))
    first.save_checkpoint(directory)
    second = engine_of(kind, params, stage)
    second.load_checkpoint(directory)
    assert all(torch.equal(a, b) for a, b in zip(whole, train(second, range(2, NUM_STEPS)), strict=True))
    other = engine_of("AdamW", {}, stage)
    with pytest.raises(CheckpointError, match="the checkpoint has no optimizer state exp_avg"):
        other.load_checkpoint(directory)
    assert Path(directory, "latest").is_file()
