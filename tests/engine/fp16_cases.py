"""Runs on the ranks: fp16 and its loss scale."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from zero_models import Model, batch, engine_of, late_verdicts, whole

import dslaunch.engine as deepspeed
from dslaunch.engine import safe_access


def late_overflows_skip_the_step(stage: int) -> None:
    with late_verdicts():
        overflows_skip_the_step(stage)


def overflows_skip_the_step(stage: int) -> None:
    fp16 = {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 2, "hysteresis": 2}
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 20}}
    engine = engine_of(Model(2), stage, fp16=fp16, scheduler=schedule)
    scales, applied = [], []
    for number, broken in enumerate([False, True, True, False, False, False, False]):
        before = whole(engine)
        loss = engine(batch(number))
        if broken and dist.get_rank() == 1:  # one rank spoils the step of all
            loss = loss * torch.inf
        engine.backward(loss)
        engine.step()
        scales.append(engine.loss_scale())
        applied.append(engine.was_step_applied())
        assert engine.optimizer is not None
        assert engine.optimizer.overflow == broken
        after = whole(engine)
        if broken:
            assert all(torch.equal(before[name], after[name]) for name in before)
        assert all(torch.isfinite(value).all() for value in after.values())
    assert scales == [16, 16, 8, 8, 8, 16, 16]
    assert applied == [True, False, False, True, True, True, True]
    assert (engine.global_steps, engine.skipped_steps, engine.optimizer.num_applied) == (7, 2, 5)
    assert engine.lr_scheduler is not None
    assert engine.lr_scheduler.state_dict() == {"last_batch_iteration": 4}
    assert (engine.fp16_enabled(), engine.dynamic_loss_scale()) == (True, True)
    scaling = engine.optimizer.loss_scaler
    assert (scaling.cur_scale, scaling.cur_iter, scaling.scale_window) == (16, 7, 2)
    assert engine.optimizer.dynamic_loss_scale


def the_host_need_not_wait(directory: str) -> None:
    """bf16: a step is taken as applied until its verdict is read, and what was counted on it taken back."""
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 20, "warmup_type": "linear"}}
    more: dict[str, object] = {"bf16": {"enabled": True}, "scheduler": schedule}
    torch.manual_seed(3)
    plain = engine_of(Model(2), 1, **more)
    torch.manual_seed(3)
    with late_verdicts():
        late = engine_of(Model(2), 1, **more)
    for number, broken in enumerate([False, False, True, False, True, True, False]):
        for engine in (plain, late):
            engine.backward(engine(batch(number)) * (torch.inf if broken else 1.0))
            engine.step()
        assert plain.optimizer is not None
        assert late.optimizer is not None
        assert plain.optimizer.is_decided
        assert not late.optimizer.is_decided
        if number == 4:  # everything there is to ask
            assert late.optimizer.overflow
            assert (late.get_lr(), late.get_mom()) == (plain.get_lr(), plain.get_mom())
            assert str(late.get_global_grad_norm()) == str(plain.get_global_grad_norm())
        if number == 5:
            late.save_checkpoint(directory)
    for name in ("global_steps", "global_samples", "skipped_steps"):
        assert getattr(late, name) == getattr(plain, name)
    assert (late.skipped_steps, late.optimizer.num_applied, late.was_step_applied()) == (3, 4, True)
    assert late.get_lr() == plain.get_lr()
    a, b = whole(plain), whole(late)
    assert all(torch.equal(a[name], b[name]) for name in a)
    resumed = engine_of(Model(2), 1, **more)
    resumed.load_checkpoint(directory)
    resumed.backward(resumed(batch(6)))
    resumed.step()
    assert resumed.get_lr() == plain.get_lr()
    c = whole(resumed)
    assert all(torch.equal(a[name], c[name]) for name in a)


def edits_outlive_a_schedule_taken_back() -> None:
    with late_verdicts():
        engine = engine_of(Model(1), 0, scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 9}})
    assert engine.optimizer is not None
    engine.backward(engine(batch(0)))
    engine.step()
    engine.backward(engine(batch(1)) * torch.nan)
    engine.step()
    engine.optimizer.param_groups[0]["lr"] = 0.5
    assert not engine.was_step_applied()
    assert engine.get_lr() == [0.5]
    assert engine.lr_scheduler is not None
    assert engine.lr_scheduler.state_dict() == {"last_batch_iteration": 0}


def autocast_to_fp16_scales_the_loss(stage: int) -> None:
    """fp32 parameters; what a forward computes in fp16 has a loss scale, an overflow lowers it."""
    fp16 = {"initial_scale_power": 4, "hysteresis": 1}
    torch.manual_seed(3)
    engine = engine_of(Model(2), stage, torch_autocast={"enabled": True, "dtype": "fp16"}, fp16=fp16)
    torch.manual_seed(3)
    plain = engine_of(Model(2), stage)
    assert (engine.loss_scale(), engine.fp16_enabled()) == (16, False)
    for number, broken in enumerate([False, True, False]):
        loss, exact = engine(batch(number)), plain(batch(number))
        assert abs(loss.item() / exact.item() - 1) < 0.02
        engine.backward(loss * (torch.inf if broken else 1.0))
        plain.backward(exact * (torch.inf if broken else 1.0))
        for each in (engine, plain):
            each.step()
        assert engine.was_step_applied() == plain.was_step_applied() == (not broken)
        if not broken:
            norms = engine.get_global_grad_norm(), plain.get_global_grad_norm()
            assert norms[0] == pytest.approx(norms[1], rel=0.05)
    assert engine.loss_scale() == 8
    assert next(engine.parameters()).dtype == torch.float32


def inputs_are_cast_and_direct_backward_is_scaled() -> None:
    fp16 = {"enabled": True, "auto_cast": True, "loss_scale": 64}
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": "Adam"},
        "gradient_clipping": 0.0,
        "fp16": fp16,
        "log_level": "error",
    }
    model = torch.nn.Linear(4, 1)
    engine = deepspeed.initialize(model=model, config=config)[0]
    x = torch.ones(2, 4)
    loss = engine(x).mean()
    assert loss.dtype == torch.float16
    assert not engine.dynamic_loss_scale()
    engine.scale(loss).backward()
    grad = safe_access.safe_get_full_grad(model.weight)
    assert grad is not None
    assert torch.equal(grad, torch.ones(1, 4))
    engine.step()
    assert engine.get_global_grad_norm() == pytest.approx(5**0.5, rel=1e-6)
