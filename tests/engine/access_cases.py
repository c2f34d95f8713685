"""Runs on the ranks: sharded parameters as scripts make, read, edit and save them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from zero_models import WIDTH, Model, assert_close, batch, config, engine_of, live_numel, train, twins, whole

import dslaunch.engine as deepspeed
from dslaunch.engine import safe_access as safe
from dslaunch.engine.sharded import ZeroParamStatus


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


def init_without_a_config_leaves_the_dtype_to_initialize() -> None:
    """DeepSpeed would make parameters in fp16, which no later config takes back."""
    torch.manual_seed(3)
    expected = dict(Model().named_parameters())
    torch.manual_seed(3)
    with deepspeed.zero.Init():
        model = Model()
    assert all(param.dtype == torch.float32 for param in model.parameters())
    engine = engine_of(model, bf16={"enabled": True})
    assert all(param.dtype == torch.bfloat16 for param in engine.module.parameters())
    for name, param in engine.module.named_parameters():
        master = safe.safe_get_full_fp32_param(param)
        assert master is not None
        assert torch.equal(master, expected[name].to(param.dtype).to(master)), name


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


def init_waits_for_what_is_on_the_meta_device() -> None:
    class Skipping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.utils.skip_init(torch.nn.Linear, WIDTH, WIDTH)
            self.blocks = torch.nn.ModuleList([torch.nn.utils.skip_init(torch.nn.LayerNorm, WIDTH)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.blocks[0](self.inner(x))
            return found

    with deepspeed.zero.Init(config_dict_or_path=config()):
        model = Skipping()
        never = torch.nn.Linear(2, 2, device="meta")
    assert all(p.numel() == 0 for p in model.parameters())
    assert model.inner.weight.ds_shape == (WIDTH, WIDTH)
    assert never.weight.is_meta
    with pytest.raises(deepspeed.EngineError, match="is on the meta device"):
        engine_of(never)


def gradients_are_updated_together(stage: int) -> None:
    engine = engine_of(Model(2), stage)
    engine.backward(engine(batch(0)))
    params = list(engine.module.parameters())
    before = {id(param): safe.safe_get_full_grad(param) for param in params}
    safe.safe_update_full_grad_vectorized(params, lambda grad, param: -2 * grad)  # type: ignore[operator]
    for param in params:
        old, new = before[id(param)], safe.safe_get_full_grad(param)
        assert old is not None
        assert new is not None
        torch.testing.assert_close(new, -2 * old)


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


def weights_may_be_read_in_the_middle_of_a_pass() -> None:
    """Between forward and backward, inside a forward, and for the loss: what the pass needs stays."""
    first, second = twins(Model)
    plain, engine = engine_of(first, 0), engine_of(second)
    for number in range(3):
        losses = []
        for each in (plain, engine):
            loss = each(batch(number))
            consolidated = each._zero3_consolidated_16bit_state_dict()
            assert (consolidated is None) == (dist.get_rank() != 0)
            with deepspeed.zero.GatheredParameters([each.module.head.weight, each.module.place.weight]):
                loss = loss + each.module.place.weight.detach().square().mean()
            each.backward(loss)
            each.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], abs=2e-6)
    assert_close(whole(plain), whole(engine))
    assert live_numel(engine) == 0
