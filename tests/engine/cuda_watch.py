"""Run by test_watch_cuda.py on a GPU: a watched run says true things, and waits for the device if due."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import torch

import dslaunch.engine as deepspeed

WIDTH, BATCH = 1024, 256


def engine_of(**more: object) -> deepspeed.Engine:
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)))
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        **more,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return engine


def step(engine: deepspeed.Engine, x: torch.Tensor) -> None:
    engine.backward(engine(x).float().square().mean())
    engine.step()


def waits_only_when_due() -> None:
    """Timers, throughput and memory lines are due at step 8; no step before that may wait for the GPU."""
    x = torch.randn(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
    engine = engine_of(steps_per_print=8, wall_clock_breakdown=True, memory_breakdown=True)
    for _ in range(3):
        step(engine, x)
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(4):
        step(engine, x)
    torch.cuda.set_sync_debug_mode("default")
    step(engine, x)


def leaves_a_step_out_by_itself() -> None:
    """An overflow is the device's to see; the host takes the step back when it asks."""
    x = torch.randn(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
    engine = engine_of(scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 9}})
    optimizer = engine.optimizer
    assert optimizer is not None
    for _ in range(2):
        step(engine, x)
    before, rate = [param.detach().clone() for param in engine.parameters()], engine.get_lr()
    engine.backward(engine(x).float().square().mean() * torch.inf)
    engine.step()
    assert not optimizer.is_decided
    assert not engine.was_step_applied()
    assert (engine.get_lr(), engine.skipped_steps, optimizer.num_applied) == (rate, 1, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, engine.parameters(), strict=True))
    step(engine, x)
    assert engine.was_step_applied()
    assert optimizer.num_applied == 3
    assert engine.get_lr() != rate


def profiles(directory: str) -> str:
    path = Path(directory, "flops.txt")
    x = torch.randn(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)
    engine = engine_of(
        flops_profiler={"enabled": True, "profile_step": 5, "output_file": str(path), "top_modules": 2},
        csv_monitor={"enabled": True, "output_path": directory, "job_name": "job"},
    )
    for _ in range(6):
        step(engine, x)
    engine.watch.close()
    return path.read_text()


if __name__ == "__main__":
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("dslaunch.engine").addHandler(Keep())
    waits_only_when_due()
    leaves_a_step_out_by_itself()
    text = profiles(sys.argv[1])
    losses = Path(sys.argv[1], "job/Train_Samples_train_loss.csv").read_text().splitlines()
    json.dump({"lines": lines, "flops": text, "losses": losses}, sys.stdout)
