"""Runs on the ranks: parameters gathered before use and released after it."""

from __future__ import annotations

import os
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from zero_models import (
    WIDTH,
    Block,
    Model,
    batch,
    config,
    engine_of,
    live_numel,
    same_as_stage_0,
    train,
    twins,
)

import dslaunch.engine as deepspeed
from dslaunch.engine.sharded import ZeroParamStatus


def checkpointed_models_train_alike() -> None:
    for recompute in (None, False, True):
        same_as_stage_0(lambda recompute=recompute: Model(recompute=recompute))  # type: ignore[misc]


def frozen_blocks_are_gathered_for_backward_and_released() -> None:
    def build() -> torch.nn.Module:
        model = Model()
        for param in model.blocks.parameters():
            param.requires_grad_(False)
        for param in model.blocks[1].mlp[0].parameters():  # type: ignore[union-attr,index]
            param.requires_grad_(True)
        return model

    engine = same_as_stage_0(build)
    peak = []
    engine.module.embed.register_forward_hook(  # type: ignore[union-attr]
        lambda _, __, out: out.register_hook(lambda _: peak.append(live_numel(engine))) and None
    )
    train(engine, 1, 9)
    block = sum(p.numel() for p in Block().parameters())
    assert max(peak) < 3 * block, (peak, block)


def the_same_module_twice_in_a_forward() -> None:
    class Twice(Model):
        def forward(self, ids: torch.Tensor, skip: int | None = None) -> torch.Tensor:
            x = self.embed(ids)
            for block in (*self.blocks, *self.blocks):
                x = block(x)
            return self.head(x * self.scale).square().mean()

    same_as_stage_0(Twice)

    def frozen() -> torch.nn.Module:
        model = Twice()
        model.blocks.requires_grad_(False)
        return model

    same_as_stage_0(frozen)


def only_a_few_blocks_are_gathered_at_a_time() -> None:
    model = Model(num_blocks=8)
    block = sum(p.numel() for p in model.blocks[0].parameters())
    engine = engine_of(model, zero={"stage3_prefetch_bucket_size": 1})
    seen: list[int] = []
    for inner in engine.module.blocks:  # type: ignore[union-attr]
        inner.register_forward_hook(lambda *_: seen.append(live_numel(engine)))
        inner.register_full_backward_hook(lambda *_: seen.append(live_numel(engine)))
    train(engine, 3)
    assert len(seen) == 3 * 16
    outside = 2 * WIDTH * 40 + 4 * 64  # what is read as a tensor stays to the end of the pass
    assert max(seen) <= 3 * block + outside, (max(seen), block)


def gathered_ahead_in_the_recorded_order() -> None:
    engine = engine_of(Model())
    train(engine, 1)
    waiting: list[bool] = []
    for number, inner in enumerate(engine.module.blocks[:-1]):  # type: ignore[index,arg-type]
        following = list(engine.module.blocks[number + 1].parameters())  # type: ignore[index,union-attr]
        inner.register_forward_hook(
            lambda *_, p=following: waiting.append(
                any(param.ds_status is ZeroParamStatus.INFLIGHT for param in p if hasattr(param, "ds_status"))
            )
        )
    train(engine, 1, 1)
    assert waiting == [True] * 3


def nothing_is_gathered_for_backward_while_activations_are_whole() -> None:
    """Between forward and backward, where memory is at its peak; what is used next stays."""
    engine = engine_of(Model())
    train(engine, 1)
    for step in (1, 2):
        loss = engine(batch(step))
        gathered = [
            name
            for name, param in engine.module.blocks.named_parameters()  # type: ignore[union-attr,operator]
            if not param.ds_persist and param.ds_status is not ZeroParamStatus.NOT_AVAILABLE
        ]
        assert gathered == []
        engine.backward(loss)
        engine.step()


def evaluation_and_generation() -> None:
    torch.manual_seed(5)
    engine = engine_of(Model())
    train(engine)
    engine.eval()
    with torch.no_grad():
        first = engine(batch(5)).item()
        for _ in range(3):
            engine.module(batch(5))
    with torch.inference_mode():
        assert engine(batch(5)).item() == first
    assert live_numel(engine) == 0
    assert engine(batch(5)).item() == first  # with gradients on, as careless scripts do
    engine.train()
    train(engine, 2, 3)
    assert live_numel(engine) == 0


def a_model_without_an_optimizer_is_sharded_too() -> None:
    first, second = twins(Model)
    plain = {name: value for name, value in config().items() if name != "optimizer"}
    engine = deepspeed.initialize(model=second, config=plain)[0]
    assert engine.zero_optimizer is None
    assert all(p.numel() == 0 for p in engine.module.blocks.parameters() if p.ds_numel > 20)
    with torch.no_grad():
        for number in range(3):
            assert engine(batch(number)).item() == pytest.approx(first(batch(number)).item(), abs=1e-6)
    assert live_numel(engine) == 0


def ranks_that_part_are_told() -> None:
    torch.manual_seed(5)
    engine = engine_of(Model())
    with pytest.raises(deepspeed.EngineError) as caught:
        engine(batch(0), skip=dist.get_rank())
    assert "the ranks run different modules: rank" in caught.value.what
    assert f"rank {dist.get_rank()} needs the parameters of blocks." in caught.value.what
    assert "set_z3_leaf_modules" in caught.value.hint


def a_rank_that_leaves_the_recorded_order_is_told() -> None:
    os.environ["DSLAUNCH_ORDER_TIMEOUT_S"] = "1"
    engine = engine_of(Model(), zero={"stage3_prefetch_bucket_size": 0})
    train(engine, 2)
    started = time.monotonic()
    try:
        if dist.get_rank() == 0:  # goes on as recorded, until the other one leaves
            with pytest.raises(deepspeed.EngineError, match=r"gathering blocks\.0\.\S+ failed"):
                engine(batch(0))
        else:
            with pytest.raises(deepspeed.EngineError, match="rank 0 has not come to that module within 1 s"):
                engine(batch(0), skip=0)
    finally:
        del os.environ["DSLAUNCH_ORDER_TIMEOUT_S"]
    assert time.monotonic() - started < 10


def external_parameters_may_be_registered() -> None:
    first, second = twins(Model)
    deepspeed.zero.register_external_parameter(second.head, second.embed.weight)
    deepspeed.zero.register_external_parameter(second, second.place.weight)
    plain, sharded = engine_of(first, 0), engine_of(second)
    assert train(plain) == pytest.approx(train(sharded), abs=2e-6)
    deepspeed.zero.unregister_external_parameter(second, second.place.weight)
    with pytest.raises(deepspeed.EngineError, match="the parameter is not registered with Model"):
        deepspeed.zero.unregister_external_parameter(second, second.place.weight)


def parameters_may_be_returned() -> None:
    """A module hands its own parameter on, as Megatron's layers do with a bias; the caller uses it."""

    class Handing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)
            self.factor = torch.nn.Parameter(torch.rand(16))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.nn.Parameter]:
            return self.linear(x), self.factor

    class Caller(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(32, 16)
            self.layers = torch.nn.ModuleList(Handing() for _ in range(2))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            for layer in self.layers:
                y, factor = layer(x)
                x = y * factor
            return x.square().mean()

    engine = same_as_stage_0(Caller)
    with torch.no_grad():
        engine.eval()
        engine(batch(0))
    assert live_numel(engine) == 0


def leaves_are_gathered_whole() -> None:
    class Routed(Model):
        def forward(self, ids: torch.Tensor, skip: int | None = None) -> torch.Tensor:
            return self.experts(self.embed(ids)).square().mean()

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = torch.nn.ModuleList(Block() for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.all[dist.get_rank() % 3](x)  # another expert on every rank

    def build() -> torch.nn.Module:
        model = Routed(0)
        model.experts = Experts()
        return model

    torch.manual_seed(3)
    named = build()
    torch.manual_seed(3)
    marked = build()
    assert deepspeed.zero.set_z3_leaf_modules(marked, [Experts]) == [marked.experts]
    assert deepspeed.zero.get_z3_leaf_modules(marked) == [marked.experts]
    losses = [
        train(engine_of(named, zero={"leaf_module": {"classes": ["Experts"]}})),
        train(engine_of(marked)),
    ]
    assert losses[0] == losses[1]
    with pytest.raises(deepspeed.EngineError, match="no module of the model is of the leaf classes Absent"):
        deepspeed.zero.set_z3_leaf_modules(marked, ["Absent"])


def compiled_units_train_alike() -> None:
    first, second = twins(Model)
    plain, compiled = engine_of(first, 0), engine_of(second)
    deepspeed.zero.register_external_parameter(second, second.place.weight)
    compiled.compile(backend="aot_eager")
    assert compiled.is_compiled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dynamo looks at .grad of whatever it meets
        assert train(plain) == pytest.approx(train(compiled), abs=2e-6)
