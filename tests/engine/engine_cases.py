"""Runs on the ranks: single behaviours of the engine."""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

import dslaunch.engine as deepspeed
from dslaunch.engine import collectives
from dslaunch.engine.safe_access import safe_get_full_grad


def config(**more: object) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 64},
        **more,
    }


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))


def engine_of(**more: object) -> deepspeed.Engine:
    model = net()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config(**more))[0]


def micro_step(engine: deepspeed.Engine, scale: float = 1.0) -> None:
    x = torch.randn(2, 4, dtype=next(engine.parameters()).dtype)
    engine.backward(engine(x).square().mean() * scale)
    engine.step()


@contextmanager
def logged() -> Iterator[list[str]]:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep()
    logger = logging.getLogger("dslaunch.engine")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def nonfinite_steps_are_left_out() -> None:
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}
    engine = engine_of(scheduler=schedule, gradient_accumulation_steps=2)
    assert engine.optimizer is not None
    for _ in range(4):
        micro_step(engine)
    before = [p.detach().clone() for p in engine.parameters()]
    moments = [state.states["exp_avg"].clone() for state in engine.optimizer.shards]
    rate = engine.get_lr()
    broken = dist.get_rank() == dist.get_world_size() - 1
    micro_step(engine, math.inf if broken else 1.0)  # one micro step of one rank spoils all of them
    micro_step(engine)
    assert not engine.was_step_applied()
    assert engine.optimizer.overflow
    assert not math.isfinite(engine.get_global_grad_norm() or 0.0)
    assert (engine.global_steps, engine.skipped_steps, engine.optimizer.num_applied) == (3, 1, 2)
    assert engine.get_lr() == rate
    assert all(torch.equal(a, b) for a, b in zip(before, engine.parameters(), strict=True))
    assert all(
        torch.equal(a, s.states["exp_avg"]) for a, s in zip(moments, engine.optimizer.shards, strict=True)
    )
    micro_step(engine)
    micro_step(engine)
    assert engine.was_step_applied()
    assert (engine.global_steps, engine.skipped_steps, engine.global_samples) == (
        4,
        1,
        4 * engine.train_batch_size(),
    )
    assert engine.get_lr() != rate


def parameters_and_gradients_are_views() -> None:
    engine = engine_of(bf16={"enabled": True})
    assert engine.optimizer is not None
    for _ in range(2):
        with engine.no_sync():
            engine.backward(engine(torch.randn(2, 4, dtype=torch.bfloat16)).mean())
        for bucket in engine.optimizer.buckets:
            for param, view in zip(bucket.members, bucket.grad_views, strict=True):
                assert param.untyped_storage().data_ptr() == bucket.params.untyped_storage().data_ptr()
                assert param.grad is view
                assert bucket.grads is not None
                assert view.untyped_storage().data_ptr() == bucket.grads.untyped_storage().data_ptr()
        micro_step(engine)
        assert all(param.grad is None for param in engine.parameters())
    assert [p.dtype for p in engine.parameters()] == [torch.bfloat16] * 4
    assert all(s.master.is_split for s in engine.optimizer.shards)
    assert sum(s.master.kept.numel() for s in engine.optimizer.shards) * dist.get_world_size() == sum(
        bucket.spec.numel for bucket in engine.optimizer.buckets
    )


def optimizer_state_is_replicated_at_stage_0() -> None:
    engine = engine_of(zero_optimization={"stage": 0})
    assert engine.optimizer is not None
    micro_step(engine)
    assert [s.master.kept.numel() for s in engine.optimizer.shards] == [
        b.spec.numel for b in engine.optimizer.buckets
    ]


def torch_schedulers_and_lr_edits_take_effect() -> None:
    model = net()
    engine, optimizer, _, scheduler = deepspeed.initialize(
        model=model,
        config=config(),
        lr_scheduler=lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2, 0.5),
    )
    assert optimizer is not None
    assert isinstance(optimizer, torch.optim.Optimizer)
    seen = []
    for _ in range(5):
        seen.append(engine.get_lr()[0])
        micro_step(engine)
    assert seen == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.0025])
    assert scheduler is engine.lr_scheduler
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.param_groups[0]["weight_decay"] = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    micro_step(engine)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def client_optimizer_and_its_scheduler() -> None:
    model = net()
    client = torch.optim.AdamW(model.parameters(), lr=0.02, betas=(0.8, 0.9), weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.StepLR(client, 1, 0.1)
    plain = {key: value for key, value in config().items() if key != "optimizer"}
    engine, optimizer, _, scheduler = deepspeed.initialize(
        model=model, optimizer=client, lr_scheduler=schedule, config=plain
    )
    assert optimizer is not None
    assert scheduler is schedule
    assert (engine.get_lr(), engine.get_mom()) == ([0.02], [(0.8, 0.9)])
    micro_step(engine)
    assert engine.get_lr() == pytest.approx([0.002])


def a_cast_after_initialize_is_an_error() -> None:
    engine = engine_of()
    micro_step(engine)
    engine.to("cpu")  # changes nothing
    micro_step(engine)
    engine.double()
    with pytest.raises(deepspeed.EngineError, match=r"parameter 2\.bias has left its flat buffer"):
        engine.step()


def parameters_that_share_memory_are_refused() -> None:
    model = net()
    twin = torch.nn.Parameter(model[0].weight.data)  # type: ignore[index,union-attr]
    model.register_parameter("twin", twin)
    with pytest.raises(deepspeed.EngineError, match=r"parameters twin and 0\.weight share their memory"):
        deepspeed.initialize(model=model, config=config())


def a_model_in_bf16_is_trained_in_it() -> None:
    engine = deepspeed.initialize(model=net().bfloat16(), config=config())[0]
    said = deepspeed.initialize(model=net(), config=config(bf16={"enabled": True}))[0]
    for one in (engine, said):
        assert one.bfloat16_enabled()
        assert one.settings.grad_accum_dtype == "bf16"
    assert any("the model is in bf16" in warning for warning in engine.settings.warnings)
    accumulates = deepspeed.initialize(
        model=net().bfloat16(), config=config(data_types={"grad_accum_dtype": "fp32"})
    )[0]
    assert accumulates.settings.grad_accum_dtype == "fp32"


def other_parameters_need_the_config_to_say_so() -> None:
    mixed = net()
    mixed[0].bfloat16()  # type: ignore[index,operator]
    for model, name in ((net().half(), "float16"), (mixed, "bfloat16")):
        with pytest.raises(
            deepspeed.EngineError, match=rf"0\.weight is torch\.{name}, but the config trains in fp32"
        ):
            deepspeed.initialize(model=model, config=config())


def without_an_optimizer_the_engine_evaluates() -> None:
    plain = {key: value for key, value in config().items() if key != "optimizer"}
    engine, optimizer, loader, scheduler = deepspeed.initialize(model=net(), config=plain)
    assert (optimizer, loader, scheduler) == (None, None, None)
    loss = engine(torch.ones(2, 4)).mean()
    for call in (lambda: engine.backward(loss), engine.step):
        with pytest.raises(deepspeed.EngineError, match="must provide optimizer during init"):
            call()


def reduce_scatter_may_be_missing() -> None:
    """A backend that lacks it gets an all-reduce of the same bucket."""
    torch.manual_seed(dist.get_rank())
    trained = []
    for missing in (False, True):
        engine = engine_of()
        if trained:
            engine.module.load_state_dict(trained[0][0])
            assert engine.optimizer is not None
            engine.optimizer.refresh_masters()
        start = {name: value.clone() for name, value in engine.module.state_dict().items()}
        torch.manual_seed(7 + dist.get_rank())
        original = collectives.reduce_scatter_flat
        if missing:
            collectives.reduce_scatter_flat = refuse
        try:
            micro_step(engine)
        finally:
            collectives.reduce_scatter_flat = original
        trained.append((start, [param.detach().clone() for param in engine.parameters()]))
    assert all(torch.equal(a, b) for a, b in zip(trained[0][1], trained[1][1], strict=True))


def refuse(*_: object, **__: object) -> None:
    raise RuntimeError("ProcessGroupGloo does not support reduce_scatter")


def second_backward_after_averaging_is_an_error() -> None:
    engine = engine_of()
    x = torch.randn(2, 4)
    engine.backward(engine(x).mean())
    with pytest.raises(deepspeed.EngineError, match="backward was called again") as caught:
        engine.backward(engine(x).mean())
    assert caught.value.hint == "call engine.step() first, or set zero_optimization.overlap_comm to false"
    with pytest.raises(deepspeed.EngineError, match=r"the gradient of 2\.\w+ arrived again"):
        engine(x).mean().backward()
    engine.step()


def two_losses_without_overlap() -> None:
    torch.manual_seed(dist.get_rank())
    engine = engine_of(zero_optimization={"stage": 1, "overlap_comm": False}, gradient_clipping=0.0)
    twin = engine_of(zero_optimization={"stage": 1, "overlap_comm": True}, gradient_clipping=0.0)
    twin.module.load_state_dict(engine.module.state_dict())
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    engine.backward(engine(x).mean())
    engine.backward(engine(y).square().mean())
    engine.step()
    twin.backward(twin(x).mean() + twin(y).square().mean())
    twin.step()
    for a, b in zip(engine.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def state_dict_of_the_optimizer() -> None:
    """One rank's part, through torch.save; another layout is told from it."""
    for stage in (1, 3):
        torch.manual_seed(1)
        zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
        engine = engine_of(zero_optimization=zero, bf16={"enabled": True})
        assert engine.optimizer is not None
        micro_step(engine)
        buffer = io.BytesIO()
        torch.save(engine.optimizer.state_dict(), buffer)
        state = torch.random.get_rng_state()
        micro_step(engine)
        expected = engine._zero3_consolidated_16bit_state_dict()
        buffer.seek(0)
        engine.optimizer.load_state_dict(torch.load(buffer, weights_only=True))
        torch.random.set_rng_state(state)
        micro_step(engine)
        again = engine._zero3_consolidated_16bit_state_dict()
        if expected is not None and again is not None:
            assert all(torch.equal(again[name], value) for name, value in expected.items())
        if dist.get_world_size() == 1:
            continue  # every stage has the same layout
        other = engine_of(zero_optimization={"stage": 0}, bf16={"enabled": True})
        assert other.optimizer is not None
        with pytest.raises(deepspeed.EngineError, match="of another stage or world size"):
            other.optimizer.load_state_dict(engine.optimizer.state_dict())


def no_sync_leaves_everything_to_the_boundary() -> None:
    torch.manual_seed(dist.get_rank())
    engine = engine_of()
    with engine.no_sync():
        engine.backward(engine(torch.randn(2, 4)).mean())
        assert engine.optimizer is not None
        assert not engine.optimizer.reducer.has_sent
        with pytest.raises(deepspeed.EngineError, match=r"Engine.step\(\) inside no_sync"):
            engine.step()
        weight = next(engine.module.parameters())
        seen = safe_get_full_grad(weight)  # of what there is so far, and it goes on
        assert weight.grad is not None
        expected = weight.grad.clone()
        dist.all_reduce(expected)
        torch.testing.assert_close(seen, expected / dist.get_world_size())
    engine.backward(engine(torch.randn(2, 4)).mean())
    engine.step()
    assert_ranks_agree(engine)


def script_sets_the_boundary() -> None:
    engine = engine_of(gradient_accumulation_steps=4)
    applied = []
    for boundary in (False, True, True, False):
        engine.set_gradient_accumulation_boundary(boundary)
        micro_step(engine)
        applied.append(engine.was_step_applied())
    assert applied == [False, True, True, False]
    assert_ranks_agree(engine)


def different_models_are_an_error_on_every_rank() -> None:
    width = 4 + dist.get_rank()
    with pytest.raises(deepspeed.EngineError, match="the ranks have built different models"):
        deepspeed.initialize(model=torch.nn.Linear(4, width), config=config())


def progress_lines() -> None:
    with logged() as lines:
        engine = engine_of(steps_per_print=2, prescale_gradients=True, nobody_knows=1)
        for _ in range(3):
            micro_step(engine)
    if dist.get_rank() != 0:
        assert lines == []
        return
    world = dist.get_world_size()
    assert lines == [
        "[Rank 0] prescale_gradients: no effect, the mean over ranks is the same either way",
        "[Rank 0] unknown keys, ignored: nobody_knows (DSLAUNCH_STRICT_CONFIG=1 makes them errors)",
        "[Rank 0] DeepSpeed info: dslaunch engine, ZeRO stage 1, fp32, gradients in fp32, "
        f"world {world} on cpu, 76 parameters in 4 buckets, batch {2 * world} = 2 * 1 * {world}, "
        "gradient clipping 1.0",
        "[Rank 0] step=2, skipped=0, lr=[0.01], mom=[(0.9, 0.999)]",
    ]


def training_data_is_shared_out() -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    engine, _, loader, _ = deepspeed.initialize(
        model=net(),
        config=config(),
        training_data=list(range(8 * world)),  # type: ignore[arg-type]
    )
    assert loader is engine.training_dataloader
    assert loader is not None
    passes = []
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(loader) == 4
        assert {len(batch) for batch in batches} == {2}  # type: ignore[arg-type]
        mine = [int(item) for batch in batches for item in batch]  # type: ignore[attr-defined]
        everyone: list[list[int]] = [[] for _ in range(world)]
        dist.all_gather_object(everyone, mine)
        assert sorted(item for part in everyone for item in part) == list(range(8 * world))
        passes.append(everyone[rank])
    assert passes[0] != passes[1]


def a_save_by_one_rank_alone_is_an_error(directory: str, who: int) -> float:
    engine = engine_of()
    micro_step(engine)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() != who:
        store.wait(["over"])  # alive, but in no collective
        return 0.0
    started = time.monotonic()
    with pytest.raises(
        deepspeed.CheckpointError, match="save_checkpoint was not called by every rank"
    ) as caught:
        engine.save_checkpoint(directory)
    assert "call save_checkpoint on every rank" in caught.value.hint
    took_s = time.monotonic() - started
    store.set("over", "")
    return took_s


def assert_ranks_agree(engine: deepspeed.Engine) -> None:
    mine = [param.detach() for param in engine.parameters()]
    everyone: list[list[torch.Tensor]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, mine)
    for other in everyone:
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))
