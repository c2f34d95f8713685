"""Runs on the ranks: optimizers that scripts bring along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from zero_models import Model, assert_close, batch, config, twins, whole

import dslaunch.engine as deepspeed


class Belief(torch.optim.Optimizer):
    """AdaBelief, with one count as an int and one as a tensor."""

    def __init__(self, params: object, lr: float = 1e-3, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state.update(count=0, counter=torch.zeros(1), kind=None)
                    state.update(mean=torch.zeros_like(param), spread=torch.zeros_like(param))
                state["count"] += 1
                state["counter"] += 1
                state["mean"].lerp_(param.grad, 1 - group["beta"])
                state["spread"].lerp_((param.grad - state["mean"]).square(), 1 - group["beta"])
                correction = 1 - group["beta"] ** state["counter"].item()
                step = state["mean"] / correction / (state["spread"].sqrt() + 1e-3 * state["count"])
                param.sub_(step, alpha=group["lr"])


def own_optimizers_step_shards(stage: int, directory: str) -> None:
    """As in one process without an engine; also over a checkpoint, and with a scheduler of torch's."""
    plain, model = twins(lambda: Model(2))
    reference = Belief(_halves(plain))
    reference_schedule = torch.optim.lr_scheduler.StepLR(reference, 2, 0.5)
    settings = config(stage, zero_allow_untested_optimizer=True, gradient_clipping=0.0)
    settings.pop("optimizer", None)

    def engine_of(model: torch.nn.Module) -> deepspeed.Engine:
        own = Belief(_halves(model))
        schedule = torch.optim.lr_scheduler.StepLR(own, 2, 0.5)
        return deepspeed.initialize(model=model, optimizer=own, lr_scheduler=schedule, config=settings)[0]

    engine = engine_of(model)
    for number in range(5):
        if number == 3:
            engine.save_checkpoint(directory)
            engine = engine_of(Model(2))
            assert engine.load_checkpoint(directory)[0] is not None
        engine.backward(engine(batch(number)))
        engine.step()
        plain(batch(number)).backward()
        for param in plain.parameters():
            if param.grad is not None:
                dist.all_reduce(param.grad)
                param.grad /= dist.get_world_size()
        reference.step()
        reference.zero_grad()
        reference_schedule.step()
    assert engine.get_lr() == pytest.approx([group["lr"] for group in reference.param_groups])
    assert_close(whole(engine), dict(plain.named_parameters()), 1e-5)
    assert Path(directory).is_dir()


def _halves(model: torch.nn.Module) -> list[dict[str, object]]:
    params = list(model.parameters())
    return [{"params": params[::2]}, {"params": params[1::2], "lr": 3e-3, "beta": 0.5}]


def own_optimizers_are_asked_for() -> None:
    model = Model(1)
    settings = config(1)
    settings.pop("optimizer", None)
    with pytest.raises(AssertionError, match="You are using an untested ZeRO Optimizer"):
        deepspeed.initialize(model=model, optimizer=Belief(model.parameters()), config=settings)
