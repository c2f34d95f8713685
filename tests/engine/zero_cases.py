"""Runs on the ranks: sharded parameters as scripts meet them."""

from __future__ import annotations

import gc
import math
import os
import time
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import dslaunch.engine as deepspeed
from dslaunch.engine import safe_access as safe
from dslaunch.engine.sharded import ShardedBucket, ZeroParamStatus

WIDTH = 16


class Block(torch.nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.Tanh(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Model(torch.nn.Module):
    """Blocks in a list; an embedding read as a tensor; a head tied to it."""

    def __init__(self, num_blocks: int = 4, recompute: bool | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32, width)
        self.place = torch.nn.Embedding(8, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = torch.nn.Linear(width, 32, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.ones(width))
        self.recompute = recompute  # use_reentrant of checkpoints; None: none

    def forward(self, ids: torch.Tensor, skip: int | None = None) -> torch.Tensor:
        x = self.embed(ids) + self.place.weight[: ids.shape[1]]
        for number, block in enumerate(self.blocks):
            if number == skip:
                continue
            x = block(x) if self.recompute is None else checkpoint(block, x, use_reentrant=self.recompute)
        logits = self.head(x * self.scale)
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def config(stage: int = 3, **more: object) -> dict[str, object]:
    zero = {"stage": stage, "stage3_param_persistence_threshold": 20, "reduce_bucket_size": 2000}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {**zero, **more.pop("zero", {})},  # type: ignore[dict-item]
        "log_level": "error",
        **more,
    }


def engine_of(model: torch.nn.Module, stage: int = 3, **more: object) -> deepspeed.Engine:
    return deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config(stage, **more)
    )[0]


def batch(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number * 7 + dist.get_rank())
    return torch.randint(0, 32, (2, 8), generator=generator)


def train(engine: deepspeed.Engine, steps: int = 3, start: int = 0) -> list[float]:
    losses = []
    for number in range(start, start + steps):
        loss = engine(batch(number))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def whole(engine: deepspeed.Engine) -> dict[str, torch.Tensor]:
    with deepspeed.zero.GatheredParameters(engine.module.parameters()):
        return {name: param.detach().clone() for name, param in engine.module.named_parameters()}


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 2e-6) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name] - b[name]).abs().max().item() < tolerance, name


def twins(build: Callable[[], torch.nn.Module]) -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(3)
    first = build()
    torch.manual_seed(3)
    return first, build()


def same_as_stage_0(build: Callable[[], torch.nn.Module], **more: object) -> deepspeed.Engine:
    """Train both; returns the stage-3 engine."""
    first, second = twins(build)
    plain, sharded = engine_of(first, 0, **more), engine_of(second, 3, **more)
    assert train(plain) == pytest.approx(train(sharded), abs=2e-6)
    assert_close(whole(plain), whole(sharded))
    assert live_numel(sharded) == 0
    return sharded


def live_numel(engine: deepspeed.Engine) -> int:
    """Elements of sharded buckets that are gathered now."""
    return sum(
        bucket.params.untyped_storage().size() // bucket.params.element_size()
        for bucket in engine.placement.sharded
    )


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
    assert engine.optimizer is None
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


def init_never_holds_the_model_whole() -> None:
    torch.manual_seed(3 + dist.get_rank())
    largest = 0
    with deepspeed.zero.Init(config_dict_or_path=config(bf16={"enabled": True})):

        class Late(Model):  # defined inside the context
            def __init__(self) -> None:
                nonlocal largest
                super().__init__()
                largest = max(p.numel() for p in self.parameters())

        model = Late()
        model.apply(lambda module: _fill(module))
    assert largest == WIDTH  # `scale` alone, which the outermost __init__ still owns
    assert all(p.numel() == 0 and p.dtype == torch.bfloat16 for p in model.parameters())
    assert model.embed.weight.ds_shape == (32, WIDTH)
    assert model.embed.weight.ds_numel == 32 * WIDTH
    assert model.embed.weight.ds_status is ZeroParamStatus.NOT_AVAILABLE
    assert model.embed.weight.ds_tensor.numel() <= 32 * WIDTH // dist.get_world_size() + 64
    assert "__init__" not in torch.nn.Module.__init_subclass__.__qualname__
    assert torch.get_default_dtype() == torch.float32
    with deepspeed.zero.GatheredParameters(model.embed.weight, modifier_rank=0):
        if dist.get_rank() == 0:
            model.embed.weight.data.fill_(0.5)
    engine = engine_of(model, bf16={"enabled": True})
    found = whole(engine)
    assert (found["embed.weight"] == 0.5).all()
    assert (found["blocks.2.mlp.0.weight"] == 0.25).all()
    master = safe.safe_get_full_fp32_param(model.embed.weight)
    assert master is not None
    assert (master == 0.5).all()
    assert all(math.isfinite(loss) for loss in train(engine))


def _fill(module: torch.nn.Module) -> None:
    if isinstance(module, torch.nn.Linear):
        assert module.weight.numel() == module.in_features * module.out_features
        torch.nn.init.constant_(module.weight, 0.25 if dist.get_rank() == 0 else 9.0)


def init_after_the_fact_and_below_stage_3() -> None:
    first, second = twins(Model)
    deepspeed.zero.Init(module=second, config_dict_or_path=config())
    assert all(p.numel() == 0 for p in second.parameters())
    for stage in (3, 1):
        engine = engine_of(second, stage)
        assert_close(whole(engine), dict(first.named_parameters()))
        engine.destroy()
    with deepspeed.zero.Init(enabled=False):
        assert torch.nn.Linear(2, 2).weight.numel() == 4


def edits_reach_the_master(stage: int) -> None:
    engine = engine_of(Model(), stage)
    train(engine, 1)
    engine.set_lr(0.0)
    weight = engine.module.blocks[1].mlp[0].weight  # type: ignore[union-attr,index]
    with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
        assert weight.shape == (4 * WIDTH, WIDTH)
        weight.data.fill_(0.125 if dist.get_rank() == 0 else 3.0)
    for group in engine.optimizer.param_groups:  # type: ignore[union-attr]
        group["weight_decay"] = 0.0
    train(engine, 1)
    assert (whole(engine)["blocks.1.mlp.0.weight"] == 0.125).all()
    if stage == 3:
        with deepspeed.zero.GatheredParameters(weight):
            with deepspeed.zero.GatheredParameters([weight]):
                pass
            assert weight.numel() > 0
            weight.data.zero_()  # nobody is named as modifier: lost
        assert (weight.numel() == 0) == (dist.get_world_size() > 1)
        if dist.get_world_size() > 1:
            assert (whole(engine)["blocks.1.mlp.0.weight"] == 0.125).all()


def safe_access(stage: int, dtype: str) -> None:
    torch.manual_seed(2)
    model = Model()
    model.place.weight.requires_grad_(False)
    on = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    if dtype == "fp16":
        on["fp16"]["initial_scale_power"] = 6  # type: ignore[assignment]
    engine = engine_of(model, stage, gradient_clipping=0.0, **on)
    assert safe.safe_get_full_fp32_param(model.place.weight) is None
    weight = model.blocks[0].mlp[2].weight  # type: ignore[union-attr,index]
    engine.backward(engine(batch(0)))
    grad = safe.safe_get_full_grad(weight)
    assert grad is not None
    assert (grad.shape, grad.dtype) == ((WIDTH, 4 * WIDTH), torch.float32)
    norm = grad.norm().item()
    local = safe.safe_get_local_grad(weight)
    assert local is not None
    shared = local.square().sum()
    if stage:
        dist.all_reduce(shared)
    assert shared.sqrt().item() == pytest.approx(norm, rel=1e-4)
    safe.safe_set_full_grad(weight, torch.full_like(grad, 0.5))
    engine.step()
    moment = safe.safe_get_full_optimizer_state(weight, "exp_avg")
    assert moment is not None
    assert torch.allclose(moment, torch.full_like(moment, 0.05))
    value = torch.randn(weight_shape := (WIDTH, 4 * WIDTH), generator=torch.Generator().manual_seed(1))
    safe.safe_set_full_fp32_param(weight, value)
    safe.safe_set_full_optimizer_state(weight, value * 2, "exp_avg_sq")
    found = safe.safe_get_full_fp32_param(weight)
    assert found is not None
    assert torch.equal(found, value)
    twice = safe.safe_get_full_optimizer_state(weight, "exp_avg_sq")
    assert twice is not None
    assert torch.equal(twice, value * 2)
    seen = whole(engine)["blocks.0.mlp.2.weight"]
    assert seen.shape == weight_shape
    assert torch.equal(seen, value.to(seen.dtype))
    part = safe.safe_get_local_fp32_param(weight)
    assert part is not None
    safe.safe_set_local_fp32_param(weight, part + 1)
    assert torch.equal(whole(engine)["blocks.0.mlp.2.weight"], (value + 1).to(seen.dtype))
    with pytest.raises(deepspeed.EngineError, match="there is no optimizer state 'momentum'"):
        safe.safe_get_full_optimizer_state(weight, "momentum")


def external_parameters_may_be_registered() -> None:
    first, second = twins(Model)
    deepspeed.zero.register_external_parameter(second.head, second.embed.weight)
    deepspeed.zero.register_external_parameter(second, second.place.weight)
    plain, sharded = engine_of(first, 0), engine_of(second)
    assert train(plain) == pytest.approx(train(sharded), abs=2e-6)
    deepspeed.zero.unregister_external_parameter(second, second.place.weight)
    with pytest.raises(deepspeed.EngineError, match="the parameter is not registered with Model"):
        deepspeed.zero.unregister_external_parameter(second, second.place.weight)


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


def several_engines_in_one_process() -> None:
    first, second = twins(Model)
    alone = train(engine_of(first), 3)
    engines = [engine_of(second), engine_of(Model(), 2), engine_of(Model(2))]
    losses = []
    for number in range(3):
        losses += train(engines[0], 1, number)
        for other in engines[1:]:
            train(other, 1, number)
    assert losses == alone
    engines[1].destroy()
    engines[2].destroy()
    assert all(p.numel() for p in engines[2].module.parameters())
    train(engines[0], 1, 3)


def dropped_engines_are_collected(stage: int) -> None:
    engine = engine_of(Model(), stage)
    train(engine)
    held = [weakref.ref(bucket.param_shard) for bucket in engine.placement.trained]
    held.append(weakref.ref(engine.module))
    del engine
    gc.collect()
    assert [ref() for ref in held] == [None] * len(held)


def weights_are_consolidated(directory: str) -> None:
    engine = engine_of(Model(), zero={"stage3_gather_16bit_weights_on_model_save": True})
    train(engine)
    expected = whole(engine)
    found = engine._zero3_consolidated_16bit_state_dict()
    if dist.get_rank():
        assert found is None
    else:
        assert found is not None
        assert list(found) == list(engine.module.state_dict())
        assert found["head.weight"] is found["embed.weight"]
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert engine.save_16bit_model(directory, "model.bin")
    loaded = torch.load(f"{directory}/model.bin", weights_only=True)
    other = engine_of(Model())
    other.load_module_state_dict(loaded)
    assert_close(whole(other), expected, 1e-9)
    assert not other.save_16bit_model(directory, "other.bin")
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"more\""):
        other.load_module_state_dict({**loaded, "more": torch.ones(1)})


def compiled_units_train_alike() -> None:
    first, second = twins(Model)
    plain, compiled = engine_of(first, 0), engine_of(second)
    deepspeed.zero.register_external_parameter(second, second.place.weight)
    compiled.compile(backend="aot_eager")
    assert compiled.is_compiled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dynamo looks at .grad of whatever it meets
        assert train(plain) == pytest.approx(train(compiled), abs=2e-6)


def no_sync_reduces_all_the_same(stage: int) -> None:
    first, second = twins(Model)
    kept, plain = engine_of(first, stage), engine_of(second, 0)
    for engine in (kept, plain):
        with engine.no_sync():
            engine.backward(engine(batch(0)))
        engine.backward(engine(batch(1)))
        engine.step()
    assert_close(whole(kept), whole(plain))


def two_losses_in_a_row(stage: int) -> None:
    first, second = twins(Model)
    kept, plain = engine_of(first, stage), engine_of(second, 0, zero={"overlap_comm": False})
    for engine in (kept, plain):
        engine.backward(engine(batch(0)))
        engine.backward(engine(batch(1)))
        engine.step()
    assert_close(whole(kept), whole(plain))


def batch_size_changes() -> None:
    engine = engine_of(Model(2), 2)
    ranks = dist.get_world_size()
    engine.set_train_batch_size(6 * ranks)
    assert engine.gradient_accumulation_steps() == 3
    train(engine, 3)
    assert (engine.global_steps, engine.global_samples) == (1, 6 * ranks)
    with pytest.raises(ValueError, match="Train batch size must be divisible by micro-batch data parallel"):
        engine.set_train_batch_size(6 * ranks + 1)


def collectives_by_deepspeeds_names() -> None:
    from dslaunch.engine import comm

    ranks, rank = comm.get_world_size(), comm.get_rank()
    gathered = torch.zeros(2 * ranks)
    comm.all_gather_into_tensor(gathered, torch.full((2,), float(rank)))
    assert gathered.tolist() == [float(other) for other in range(ranks) for _ in range(2)]
    part = torch.zeros(2)
    comm.reduce_scatter_tensor(part, torch.arange(2.0 * ranks))
    assert part.tolist() == [ranks * 2.0 * rank, ranks * (2.0 * rank + 1)]
    total = torch.ones(1)
    comm.all_reduce(total, op=comm.ReduceOp.SUM)
    assert total.item() == ranks
    comm.init_distributed()
    comm.log_summary()
    assert comm.is_initialized()
    assert comm.get_local_rank() == 0
    assert comm.get_world_group() is dist.group.WORLD
    assert all(hasattr(comm, name) for name in comm.__all__)


def live_bytes(stage: int, accumulate_in_fp32: bool) -> dict[str, float]:
    """Bytes this rank's engine holds between steps, by kind, for a model of `numel` parameters."""
    more: dict[str, object] = {"data_types": {"grad_accum_dtype": "fp32"}} if accumulate_in_fp32 else {}
    engine = engine_of(
        Model(6, width=48), stage, bf16={"enabled": True}, zero={"reduce_bucket_size": 60_000}, **more
    )
    train(engine, 2)
    optimizer = engine.optimizer
    assert optimizer is not None
    seen: dict[int, int] = {}

    def count(*tensors: torch.Tensor | None) -> int:
        total = 0
        for tensor in tensors:
            if tensor is not None:
                storage = tensor.untyped_storage()
                total += 0 if storage.data_ptr() in seen else storage.nbytes()
                seen[storage.data_ptr()] = 1
        return total

    buckets = optimizer.buckets
    buffers = getattr(optimizer.reducer, "_buffers", [])
    found = {
        "numel": sum(slot.numel for bucket in buckets for slot in bucket.spec.slots),
        "padded": sum(bucket.spec.numel for bucket in buckets),
        "params": sum(count(bucket.params, bucket.param_shard) for bucket in buckets),
        "members": sum(count(param.data) for bucket in buckets for param in bucket.members),
        "grads": sum(count(bucket.grads, bucket.grad_shard) for bucket in buckets),
        "leaves": sum(count(param.grad) for bucket in buckets for param in bucket.members),
        "states": sum(count(s.master, *s.states.values()) for s in optimizer.shards),
        "buffers": sum(count(buffer) for buffer in buffers),
        "largest": max(bucket.spec.numel for bucket in buckets),
        "resident": sum(b.spec.numel for b in buckets if not isinstance(b, ShardedBucket)),
    }
    return {name: float(value) for name, value in found.items()}
