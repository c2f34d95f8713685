"""Runs on the ranks: what other programs touch of an engine: TRL around generation, getters, own counting."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.distributed as dist
from zero_models import Model, assert_close, batch, config, engine_of, live_numel, train, twins, whole

import dslaunch.engine as deepspeed
from dslaunch.engine.parameter_offload import ParameterOffload
from dslaunch.engine.safe_access import safe_get_full_grad
from dslaunch.engine.sharded import ZeroParamStatus


def hooks_come_off_around_generation() -> None:
    """What TRL does, word by word, between two training steps."""
    first, second = twins(Model)
    alone = train(engine_of(first), 4)
    engine = engine_of(second)
    losses = train(engine, 2)
    assert engine.optimizer is not None
    with deepspeed.zero.GatheredParameters(engine.parameters()):
        offload = engine.optimizer.parameter_offload
        inner = offload.module
        for _, param in itertools.chain(inner.named_parameters(recurse=True), inner.ds_external_parameters()):
            param.ds_active_sub_modules.clear()  # type: ignore[attr-defined]
        for hook in (*offload.forward_hooks, *offload.backward_hooks):
            hook.remove()
        offload.forward_hooks = []
        offload.backward_hooks = []
        assert not inner.blocks[0]._forward_hooks  # type: ignore[union-attr,index]
        with torch.no_grad():
            expected = [engine.module(batch(9)).item() for _ in range(2)]
        assert all(param.ds_status is ZeroParamStatus.AVAILABLE for param in engine.parameters())
        if not offload.param_coordinator.is_invalid_trace():
            offload.param_coordinator._invalidate_trace()
        offload._register_deepspeed_module(offload.module)
    assert live_numel(engine) == 0
    with deepspeed.zero.unwrap_model_for_generation(engine) as unwrapped, torch.no_grad():
        assert [unwrapped.module(batch(9)).item()] == expected[:1] == expected[1:]
    assert losses + train(engine, 2, 2) == alone
    assert live_numel(engine) == 0


def a_reference_model_gives_its_handles() -> None:
    """What TRL does around generation with a model that nobody trains: `optimizer` has the hooks itself."""
    plain = {name: value for name, value in config().items() if name != "optimizer"}
    engine, offload, _, _ = deepspeed.initialize(model=Model(), config=plain)
    assert offload is engine.optimizer
    assert isinstance(offload, ParameterOffload)
    assert not hasattr(offload, "parameter_offload")
    with torch.no_grad():
        expected = engine(batch(9)).item()
    with deepspeed.zero.GatheredParameters(engine.parameters()):
        for hook in (*offload.forward_hooks, *offload.backward_hooks):
            hook.remove()
        offload.forward_hooks, offload.backward_hooks = [], []
        with torch.no_grad():
            assert engine.module(batch(9)).item() == expected
        offload._register_deepspeed_module(offload.module)
    offload.partition_all_parameters()
    assert live_numel(engine) == 0
    with deepspeed.zero.unwrap_model_for_generation(engine) as unwrapped, torch.no_grad():
        assert unwrapped.module(batch(9)).item() == expected
    with torch.no_grad():
        assert engine(batch(9)).item() == expected
    with pytest.raises(deepspeed.EngineError, match="must provide optimizer"):
        engine.step()
    assert deepspeed.initialize(model=Model(), config={**plain, "zero_optimization": {"stage": 2}})[1] is None


def gradients_may_be_added_up(stage: int) -> None:
    """gradient_allreduce_op sum: what the mean is, times the ranks; norms and clipping are of the sum."""
    first, second = twins(Model)
    world = dist.get_world_size()
    grads: list[tuple[object, ...]] = []
    mean = engine_of(first, stage, gradient_accumulation_steps=2)
    total = engine_of(second, stage, gradient_accumulation_steps=2, gradient_allreduce_op="sum")
    for engine in (mean, total):
        place = engine.module.place.weight  # type: ignore[union-attr]
        engine.backward(engine(batch(0)))
        early = safe_get_full_grad(place)
        engine.step()
        engine.backward(engine(batch(1)))
        late = safe_get_full_grad(place)
        engine.step()
        grads.append((early, late, engine.get_global_grad_norm()))
    for ours, sums in zip(*grads, strict=True):
        torch.testing.assert_close(torch.as_tensor(sums), torch.as_tensor(ours) * world)


def modules_can_be_copied() -> None:
    engine = engine_of(Model())
    train(engine, 1)
    with deepspeed.zero.GatheredParameters(engine.parameters()):
        twin = copy.deepcopy(engine.module)
        found = {name: param.detach().clone() for name, param in twin.named_parameters()}
    assert_close(whole(engine), found, 1e-9)


def the_script_counts_micro_steps(stage: int) -> None:
    """managed_gradient_accumulation false: step() ends the accumulation, losses are not divided."""
    first, second = twins(Model)
    plain = engine_of(first, stage, gradient_accumulation_steps=3)
    own = engine_of(second, stage, gradient_accumulation_steps=3, managed_gradient_accumulation=False)
    for number in range(6):
        plain.backward(plain(batch(number)))
        plain.step()
        own.backward(own(batch(number)) / 3)
        if number % 3 == 2:
            assert own.is_gradient_accumulation_boundary()
            own.step()
            assert own.was_step_applied()
    assert (own.global_steps, plain.global_steps) == (2, 2)
    assert_close(whole(own), whole(plain))


def gradients_are_averaged_on_demand(stage: int) -> None:
    first, second = twins(Model)
    plain, coalesced = engine_of(first, stage, zero={"overlap_comm": False}), engine_of(second, stage)
    for engine in (plain, coalesced):
        if engine is coalesced:
            with engine.coalesce_grad_reduction():
                engine.backward(engine(batch(0)))
                engine.backward(engine(batch(1)))
        else:
            engine.backward(engine(batch(0)))
            engine.backward(engine(batch(1)))
            engine.allreduce_gradients()
        engine.step()
    assert_close(whole(plain), whole(coalesced))


def getters_say_what_the_config_says() -> None:
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}
    engine = engine_of(
        Model(1), 2, scheduler=schedule, bf16={"enabled": True}, communication_data_type="fp32"
    )
    assert engine.get_data_types() == (torch.bfloat16, torch.float32)
    assert (engine.optimizer_name(), engine.optimizer_params()) == ("AdamW", {"lr": 0.01})
    assert (engine.scheduler_name(), engine.scheduler_params()) == ("WarmupLR", {"warmup_num_steps": 4})
    assert engine.zero_reduce_bucket_size() == 2000
    assert engine.zero_overlap_comm()
    assert not engine.flops_profiler_enabled()
    assert not engine.is_compiled
    assert engine.basic_optimizer is engine.optimizer
    assert engine.client_optimizer is None
    assert (engine.mp_world_size, engine.get_data_parallel_rank()) == (1, dist.get_rank())
    assert engine.data_parallel_group is dist.group.WORLD
    loader = engine.deepspeed_io(list(range(8)), batch_size=2)  # type: ignore[arg-type]
    assert len(loader) == 4 // dist.get_world_size()
    with pytest.raises(deepspeed.EngineError, match="data_sampler"):
        engine.deepspeed_io([], data_sampler=object())  # type: ignore[arg-type]
