"""Runs on the ranks: loading checkpoints that the real DeepSpeed wrote (`deepspeed_checkpoints/make.py`)."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from checkpoint_engines import state_of
from safetensors.torch import load_file

import dslaunch.engine as deepspeed

HERE = Path(__file__).parent / "deepspeed_checkpoints"
FEATURES = 6


class Net(torch.nn.Module):
    """The model of make.py."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(FEATURES, 7)
        self.middle = torch.nn.Linear(7, 7)
        self.again = torch.nn.Linear(7, 7)
        self.norm = torch.nn.LayerNorm(7)
        self.outer = torch.nn.Linear(7, FEATURES)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.again.weight = self.middle.weight
        self.inner.weight.requires_grad_(False)
        self.norm.bias.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.middle(torch.tanh(self.inner(x))))
        y: torch.Tensor = self.outer(self.norm(torch.tanh(self.again(hidden)))) * self.scale
        return y


def engine_of(stage: int, dtype: str) -> deepspeed.Engine:
    torch.manual_seed(4)
    model = Net()
    trained = [param for param in model.parameters() if param.requires_grad]
    groups: list[dict[str, object]] = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0, "lr": 0.002},
    ]
    return deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(groups, lr=0.01),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 6}},
            "bf16": {"enabled": dtype == "bf16"},
            "fp16": {"enabled": dtype == "fp16", "initial_scale_power": 3},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 8},
            "log_level": "error",
        },
    )[0]


def load(case: str, stage: int) -> list[str]:
    """Into an engine of our own at `stage`; what is not as DeepSpeed says."""
    dtype = case.split("-")[1]
    engine = engine_of(stage, dtype)
    path, client_state = engine.load_checkpoint(HERE / case)
    assert path == str(HERE / case / "global_step3")
    assert client_state == {"step": 3, "note": ["a", 1.5]}
    expected = load_file(HERE / case / "expected.safetensors")
    found = state_of(engine)
    assert expected.keys() <= found.keys()
    wrong = [name for name, value in expected.items() if not torch.equal(value, found[name])]
    about = json.loads((HERE / case / "expected.json").read_text())
    told: dict[str, object] = {
        "global_steps": engine.global_steps,
        "skipped_steps": engine.skipped_steps,
        "global_samples": engine.global_samples,
        "lr": engine.get_lr(),
        "loss_scale": engine.loss_scale(),
    }
    wrong += [name for name, value in told.items() if value != about[name]]
    assert engine.optimizer is not None
    ahead = case.startswith("stage0") and dtype != "fp32"  # DeepSpeed's own first step is its second there
    if engine.optimizer.num_applied != 3 + ahead:
        wrong.append("optimizer steps")
    moments = [name for name in found if name.startswith("exp_avg")]
    wrong += [name for name in moments if not found[name].any()]
    x = torch.randn(2, FEATURES, generator=torch.Generator().manual_seed(dist.get_rank()))
    for _ in range(2):  # it trains on
        engine.backward(engine(x.to(next(engine.parameters()).dtype)).float().square().mean())
        engine.step()
    return wrong


def save(directory: str, stage: int, dtype: str) -> None:
    """A checkpoint of our own with what is hard to convert, and the state it holds."""
    engine = engine_of(stage, dtype)
    x = torch.randn(2, FEATURES, generator=torch.Generator().manual_seed(dist.get_rank()))
    for _ in range(3):
        engine.backward(engine(x.to(next(engine.parameters()).dtype)).float().square().mean())
        engine.step()
    engine.save_checkpoint(directory, client_state={"best": 0.5})
    state = state_of(engine)
    if dist.get_rank() == 0:
        torch.save({**state, "lr": engine.get_lr(), "scale": engine.loss_scale()}, f"{directory}/expected.pt")


def reload(directory: str, expected: str, stage: int, dtype: str) -> list[str]:
    """What differs from the state at `expected` after loading."""
    engine = engine_of(stage, dtype)
    assert engine.load_checkpoint(directory)[1] == {"best": 0.5}
    wanted = torch.load(expected)
    found = {**state_of(engine), "lr": engine.get_lr(), "scale": engine.loss_scale()}
    assert wanted.keys() == found.keys()
    return [
        name
        for name, value in wanted.items()
        if not (torch.equal(value, found[name]) if isinstance(value, torch.Tensor) else value == found[name])
    ]


def states(case: str) -> dict[str, torch.Tensor]:
    """What a checkpoint brings into an engine at stage 1."""
    engine = engine_of(1, case.split("-")[1])
    engine.load_checkpoint(HERE / case)
    return state_of(engine)
