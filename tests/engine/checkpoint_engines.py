"""An engine whose checkpoints are tried, training it, and everything that a checkpoint has to bring back."""

from __future__ import annotations

import torch
from equivalence_cases import FEATURES, Net, full_state

import dslaunch.engine as deepspeed
from dslaunch.engine import checkpoint_contents
from dslaunch.engine.model_weights import consolidated

GLOBAL_BATCH = 24


def engine_of(
    stage: int,
    bf16: bool,
    init_seed: int,
    flags: tuple[str, ...] = ("tied", "frozen"),
    fp16: bool = False,
    checkpoint: dict[str, object] | None = None,
    zero: dict[str, object] | None = None,
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
                **(zero or {}),
            },
            "checkpoint": checkpoint or {},
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


def whole_of(engine: deepspeed.Engine) -> dict[str, object]:
    """Everything a checkpoint carries, on every rank. Collective."""
    assert engine.optimizer is not None
    assert engine.lr_scheduler is not None
    return {
        **state_of(engine),
        "applied": engine.optimizer.num_applied,
        "counters": [engine.global_steps, engine.global_samples, engine.skipped_steps],
        "groups": checkpoint_contents.hyperparameters(engine.optimizer),
        "scheduler": engine.lr_scheduler.state_dict(),
        "scaler": engine.optimizer.scaler_state(),
    }


def different(a: dict[str, object], b: dict[str, object]) -> list[str]:
    """Names of what differs in a bit."""
    assert a.keys() == b.keys()

    def same(x: object, y: object) -> bool:
        return torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x == y

    return [name for name in a if not same(a[name], b[name])]
