"""Runs on the ranks: training with and without offload, bit for bit."""

from __future__ import annotations

import copy
import functools
import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from equivalence_cases import (
    FEATURES,
    GLOBAL_BATCH,
    NUM_STEPS,
    Case,
    Net,
    config_of,
    full_state,
    groups_of,
    loss_of,
    ranks_agree,
    train_with_engine,
)

import dslaunch.engine as deepspeed
from dslaunch.engine import host_stepper, late_gather, safe_access
from dslaunch.engine.late_gather import LateGather

ON_HOST = {"device": "cpu"}
OPTIMIZER: dict[str, object] = {"offload_optimizer": ON_HOST}


def data_of(seed: int, device: str = "cpu") -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_STEPS, GLOBAL_BATCH, FEATURES, generator=generator).to(device)


def train(case: Case, seed: int, device: str = "cpu") -> tuple[deepspeed.Engine, list[object]]:
    """The engine and everything that came of it."""
    torch.manual_seed(seed)
    losses, norms, engine = train_with_engine(Net(case.model).to(device), case, data_of(seed, device))
    states = {kind: full_state(engine, kind) for kind in ("master", "exp_avg", "exp_avg_sq")}
    return engine, [losses, norms, copy.deepcopy(states)]


def run(cases: list[Case], seed: int) -> dict[str, list[str]]:
    """What differs from the same training without offload, by case."""
    found: dict[str, list[str]] = {}
    for case in cases:
        kept = {key: value for key, value in case.zero.items() if not key.startswith("offload")}
        _, (losses, norms, states) = train(replace(case, zero=kept), seed)
        engine, (own_losses, own_norms, own_states) = train(case, seed)
        differs = found.setdefault(case.name, [])
        far = torch.tensor(norms) / torch.tensor(own_norms) - 1
        # Alone, only offload_param cuts the model into units: the same squares are summed in another order.
        same_buckets = dist.get_world_size() > 1 or "offload_param" not in case.zero
        if far.abs().max() > (0.0 if same_buckets else 1e-3):
            differs.append(f"norms {norms} {own_norms}")
        if same_buckets or not case.clipping:
            if losses != own_losses:
                differs.append(f"losses {losses} {own_losses}")
            for kind, tensors in states.items():  # type: ignore[attr-defined]
                for name, tensor in tensors.items():
                    if not torch.equal(tensor, own_states[kind][name]):  # type: ignore[index]
                        differs.append(f"{kind} of {name}")
        if not ranks_agree(engine):
            differs.append("the ranks")
        assert engine.optimizer is not None
        assert engine.optimizer.offload is not None
        on_host = [bucket for bucket in engine.optimizer.buckets if bucket.host is not None]
        share = sum(b.spec.numel for b in on_host) / sum(b.spec.numel for b in engine.optimizer.buckets)
        asked = case.zero["offload_optimizer"].get("ratio", 1.0)  # type: ignore[attr-defined]
        if not asked <= share < asked + 0.5:
            differs.append(f"share {share}")
        engine.destroy()
    return found


def run_late(cases: list[Case], seed: int) -> tuple[dict[str, list[str]], bool]:
    """`run` with forwards that wait block by block for a slow host; whether others were stepped meanwhile."""
    own, take = host_stepper.step_shards_, LateGather.need
    waited: list[int] = []

    def slowly(*args: Any, **options: Any) -> None:
        time.sleep(0.002)
        own(*args, **options)

    def need(gather: LateGather, param: torch.Tensor) -> None:
        take(gather, param)
        waited.append(len(gather._pending))

    os.environ[late_gather.VARIABLE] = "1"
    host_stepper.step_shards_, LateGather.need = slowly, need  # type: ignore[assignment,method-assign]
    try:
        return run(cases, seed), any(waited)
    finally:
        host_stepper.step_shards_, LateGather.need = own, take  # type: ignore[method-assign]
        del os.environ[late_gather.VARIABLE]


def steps_under_way(stage: int, seed: int) -> None:
    """Whoever reads states after a step has those of that step, and the next step begins with them."""
    own = host_stepper.step_shards_
    all_sharded = {**OPTIMIZER, "offload_param": ON_HOST, "stage3_param_persistence_threshold": 0}
    both = all_sharded if stage == 3 else OPTIMIZER
    engine, twin = (engine_of(case_of(stage, both), seed) for _ in "ab")
    assert engine.optimizer is not None
    assert twin.optimizer is not None
    engine.optimizer.steps.wait_late(
        None if stage == 3 else LateGather(engine.module, engine.placement.trained)
    )
    x = data_of(seed)[0].bfloat16()[:4]
    for reads in (True, False, True):
        twin.backward(loss_of(twin, x, 0))
        twin.step()
        allowed = threading.Event()
        host_stepper.step_shards_ = functools.partial(_held, allowed, own)
        try:
            engine.backward(loss_of(engine, x, 0))
            engine.step()  # does not wait for the host
            engine.optimizer.zero_grad()
            assert any(bucket.stepping is not None for bucket in engine.optimizer.buckets)
            allowed.set()
            if reads:
                assert all(map(torch.equal, states_of(engine), states_of(twin)))
        finally:
            host_stepper.step_shards_ = own


def _held(until: threading.Event, step: Callable[..., None], *args: Any, **options: Any) -> None:
    until.wait(20)
    step(*args, **options)


def case_of(stage: int, offload: dict[str, object], clipping: float = 0.5) -> Case:
    zero: dict[str, object] = {"reduce_bucket_size": 300, "stage3_param_persistence_threshold": 20}
    return Case("", stage, True, clipping=clipping, zero={**zero, **offload}, check_overflow=clipping > 0)


def engine_of(case: Case, seed: int) -> deepspeed.Engine:
    torch.manual_seed(seed)
    net = Net(("tied", "frozen"))
    return deepspeed.initialize(model=net, model_parameters=groups_of(net, case), config=config_of(case, 1))[
        0
    ]


def some_steps(engine: deepspeed.Engine, seed: int) -> list[float]:
    losses = []
    for step_data in data_of(seed):
        size = GLOBAL_BATCH // engine.world_size
        x = step_data.bfloat16()[engine.global_rank * size : (engine.global_rank + 1) * size]
        loss = loss_of(engine, x, engine.global_rank)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def states_of(engine: deepspeed.Engine) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for kind in ("master", "exp_avg", "exp_avg_sq"):
        found += [tensor.clone() for _, tensor in sorted(full_state(engine, kind).items())]
    return found


def checkpoints_cross(directory: str, seed: int) -> None:
    """What was saved with offload trains on without, and the other way round, bit for bit."""
    both = {**OPTIMIZER, "offload_param": {"device": "cpu"}}
    half = {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}
    pairs = [(1, OPTIMIZER, {}), (2, {}, half), (3, both, OPTIMIZER), (3, {}, both)]
    for number, (stage, saved_with, loaded_with) in enumerate(pairs):
        # Without clipping the sum of squares, and so the order of buckets, has no part in it.
        source = engine_of(case_of(stage, saved_with, 0.0), seed)
        some_steps(source, seed)
        source.save_checkpoint(f"{directory}/{number}")
        target = engine_of(case_of(stage, loaded_with, 0.0), seed + 1)
        target.load_checkpoint(f"{directory}/{number}")
        for _ in range(2):
            assert all(map(torch.equal, states_of(source), states_of(target))), (stage, loaded_with)
            assert some_steps(source, seed + 2) == some_steps(target, seed + 2), (stage, loaded_with)


def access(seed: int) -> None:
    """Gradients and states on the host are read and written as those on the device."""
    found = []
    for offload in ({}, OPTIMIZER):
        engine = engine_of(case_of(2, offload), seed)
        some_steps(engine, seed)
        param = engine.module.middle.weight
        x = data_of(seed)[0].bfloat16()[:4]
        engine.backward(loss_of(engine, x, 0))
        grad = safe_access.safe_get_full_grad(param)
        assert grad is not None
        safe_access.safe_set_full_grad(param, 3 * grad.bfloat16().float())
        local = safe_access.safe_get_local_grad(param)
        engine.step()
        safe_access.safe_set_full_optimizer_state(param, torch.full_like(grad, 0.5), "exp_avg")
        safe_access.safe_set_full_fp32_param(param, torch.full_like(grad, 0.25))
        assert bool((param == 0.25).all())
        found.append([grad, local, engine.get_global_grad_norm(), *states_of(engine)])
    for kept, offloaded in zip(*found, strict=True):
        assert torch.equal(torch.as_tensor(kept), torch.as_tensor(offloaded))


def too_late(seed: int) -> list[str]:
    """What is said to gradients that come, or are edited, after others have left for the host."""
    said = []
    for clipping, late in ((0.5, "backward"), (0.0, "zero_grad"), (0.0, "set")):
        engine = engine_of(case_of(1, OPTIMIZER, clipping), seed)
        x = data_of(seed)[0].bfloat16()
        engine.backward(loss_of(engine, x, 0))
        param = engine.module.middle.weight
        again = loss_of(engine, x, 0)
        actions: dict[str, Callable[[], object]] = {
            "backward": functools.partial(engine.backward, again),
            "zero_grad": engine.zero_grad,
            "set": functools.partial(safe_access.safe_set_full_grad, param, torch.zeros(param.shape)),
        }
        with pytest.raises(deepspeed.EngineError) as caught:
            actions[late]()
        said.append(caught.value.what)
        engine.step()
    return said


def host_steps_fail(seed: int) -> str:
    """An error of the stepping thread ends `step()`."""
    engine = engine_of(case_of(1, OPTIMIZER), seed)
    engine.backward(loss_of(engine, data_of(seed)[0].bfloat16(), 0))
    assert engine.optimizer is not None
    engine.optimizer.param_groups[0]["betas"] = ("a", "b")
    with pytest.raises((TypeError, ValueError)) as caught:
        engine.step()
    return str(caught.value)


def engines_end(seed: int) -> list[str]:
    """The threads that are left of offloading engines that were dropped or destroyed."""
    for destroy in (False, True):
        engine = engine_of(case_of(1, OPTIMIZER), seed)
        some_steps(engine, seed)
        if destroy:
            engine.destroy()
        del engine
        gc.collect()
    deadline = time.monotonic() + 20
    left = ["?"]
    while left and time.monotonic() < deadline:
        left = [thread.name for thread in threading.enumerate() if "offload" in thread.name]
    return left


def training_without_its_optimizer_on_the_host(_: int) -> str:
    with pytest.raises(deepspeed.EngineError) as caught:
        engine_of(case_of(3, {"offload_param": {"device": "cpu"}}), 1)
    return caught.value.what


def states_come_back(seed: int) -> list[str]:
    """An engine whose states were away for a while trains on as its twin; what it refuses meanwhile."""
    said: list[str] = []
    for stage, offload in ((1, {}), (2, OPTIMIZER), (3, {}), (3, {**OPTIMIZER, "offload_param": ON_HOST})):
        engine, twin = (engine_of(case_of(stage, offload), seed) for _ in "ab")
        assert some_steps(engine, seed) == some_steps(twin, seed)
        engine.offload_states(include=["optim_states", "hp_params", "contiguous_grad_buffer"])
        x = data_of(seed)[0].bfloat16()[:4]
        with torch.no_grad():
            assert torch.equal(engine(x, 0), twin(x, 0))
        engine.offload_states()
        before = held(engine)
        engine.reload_states()
        after = held(engine)
        assert before == 0 < after, (stage, before, after)
        assert some_steps(engine, seed + 1) == some_steps(twin, seed + 1)
        assert all(map(torch.equal, states_of(engine), states_of(twin)))
        engine.offload_states(pin_memory=False)
        for action in (
            functools.partial(engine, x, 0),
            engine.step,
            functools.partial(engine.save_checkpoint, "/nowhere"),
        ):
            with pytest.raises(deepspeed.EngineError) as caught:
                action()
            said.append(f"{caught.value.what}; {caught.value.hint}")
        if stage == 3 and not offload:
            with pytest.raises(deepspeed.EngineError) as caught:
                deepspeed.zero.GatheredParameters(engine.module.parameters()).__enter__()
            assert caught.value.what.endswith("cannot be gathered while lp_params are offloaded")
        engine.destroy()
    with pytest.raises(deepspeed.EngineError) as caught:
        twin.offload_states(include=["params"])
    return sorted({*said, f"{caught.value.what}; {caught.value.hint}"})


def held(engine: deepspeed.Engine) -> int:
    """Bytes of what the device keeps of trained buckets and is not ZeRO-Offload's."""
    assert engine.optimizer is not None
    total = 0
    for bucket in engine.optimizer.buckets:
        assert bucket.state is not None
        kept = [] if bucket.host else [bucket.state.master.kept, *bucket.state.states.values()]
        shard = [] if getattr(bucket, "lane", None) else [bucket.param_shard]
        total += sum(tensor.untyped_storage().size() for tensor in (*kept, *shard))
    return total


def a_model_that_is_only_asked(seed: int) -> None:
    """Without an optimizer the shards live on the host too, also on one rank and under zero.Init."""
    torch.manual_seed(seed)
    plain = Net(()).bfloat16()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_param": ON_HOST, "stage3_param_persistence_threshold": 20},
        "log_level": "error",
    }
    torch.manual_seed(seed)
    with deepspeed.zero.Init(config_dict_or_path=config):
        net = Net(())
    assert all(param.numel() == 0 for param in net.parameters())
    with deepspeed.zero.GatheredParameters(net.parameters(), modifier_rank=0):
        for param, whole in zip(net.parameters(), plain.parameters(), strict=True):
            param.data.copy_(whole.data)
    engine = deepspeed.initialize(model=net, config=config)[0]
    assert engine.zero_optimizer is None
    assert all(bucket.lane is not None for bucket in engine.placement.sharded)
    x = data_of(seed)[0].bfloat16()
    with torch.no_grad():
        assert torch.equal(engine(x, 0), plain(x, 0))
    assert engine.module.middle.weight.numel() == 0


def matrices_stay_on_the_device(seed: int) -> str:
    """Muon's matrices are stepped where they are, the rest on the host; LAMB leaves the host nothing."""
    found = []
    for offload in ({}, OPTIMIZER):
        case = case_of(2, offload)
        torch.manual_seed(seed)
        net = Net(())
        groups: list[dict[str, object]] = [
            {"params": [p for p in net.parameters() if p.dim() == 2], "use_muon": True},
            {"params": [p for p in net.parameters() if p.dim() != 2], "use_muon": False},
        ]
        config = {**config_of(case, 1), "optimizer": {"type": "Muon", "params": {"lr": 0.01}}}
        engine = deepspeed.initialize(model=net, model_parameters=groups, config=config)[0]
        assert engine.optimizer is not None
        if offload:
            on_host = [bucket.host is not None for bucket in engine.optimizer.buckets]
            assert on_host == [bucket.spec.group == 1 for bucket in engine.optimizer.buckets]
        found.append([some_steps(engine, seed), full_state(engine, "master")])
    assert found[0][0] == found[1][0]
    assert all(torch.equal(value, found[1][1][name]) for name, value in found[0][1].items())  # type: ignore[attr-defined,index]
    config = {**config_of(case_of(2, OPTIMIZER), 1), "optimizer": {"type": "Lamb"}}
    with pytest.raises(deepspeed.EngineError) as caught:
        deepspeed.initialize(model=Net(()), config=config)
    return caught.value.what
