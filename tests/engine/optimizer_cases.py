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


def trains_as_the_paper(kind: str, params: dict[str, object], stage: int) -> None:
    """LAMB and Muon against their rules tensor by tensor."""
    found = train(engine_of(kind, params, stage), range(NUM_STEPS))
    torch.manual_seed(7)
    model = net()
    states = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    for step in range(NUM_STEPS):
        model.zero_grad()
        model(batch(step)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for param, (m, v) in zip(model.parameters(), states, strict=True):
            assert param.grad is not None
            rule = lamb if kind == "LAMB" else muon if param.dim() == 2 else adamw
            rule(param.data, param.grad, m, v, step + 1)
    for ours, theirs in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=2e-5)


def lamb(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: int) -> None:
    """lr 0.1, betas 0.9 and 0.99, weight decay 0.1, as DeepSpeed's FusedLamb."""
    m.mul_(0.9).add_(0.1 * g)
    v.mul_(0.99).add_(0.01 * g * g)
    r = m / (v.sqrt() + 1e-8) + 0.1 * p
    ratio = p.norm() / r.norm() if p.norm() > 0 and r.norm() > 0 else torch.tensor(1.0)
    p -= 0.1 * (1 - 0.99**step) ** 0.5 / (1 - 0.9**step) * ratio.clamp(0.01, 10.0) * r


def muon(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: int) -> None:
    """muon_lr 0.05, momentum 0.95, weight decay 0.1, Nesterov; Newton and Schulz's five steps."""
    m.mul_(0.95).add_(0.05 * g)
    x = (0.05 * g + 0.95 * m).double()
    x = x / x.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    p *= 1 - 0.05 * 0.1
    p -= 0.05 * max(1, p.shape[0] / p.shape[1]) ** 0.5 * x


def adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: int) -> None:
    """lr 0.01, betas 0.9 and 0.95, weight decay 0.1."""
    m.mul_(0.9).add_(0.1 * g)
    v.mul_(0.95).add_(0.05 * g * g)
    p *= 1 - 0.01 * 0.1
    p -= 0.01 * (m / (1 - 0.9**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-10)


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
    other = engine_of("Adagrad" if kind == "LAMB" else "AdamW", {}, stage)
    with pytest.raises(
        CheckpointError, match=r"the checkpoint has no optimizer state (exp_avg\w*|sum) of \d"
    ):
        other.load_checkpoint(directory)
    assert Path(directory, "latest").is_file()
