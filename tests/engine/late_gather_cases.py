"""Runs on the ranks: new parameters that the next forward waits for."""

from __future__ import annotations

import copy
import os
import pickle

import torch
from zero_models import Model, assert_close, batch, engine_of, train, twins, whole

import dslaunch.engine as deepspeed
from dslaunch.engine import late_gather, safe_access
from dslaunch.engine.late_gather import LateGather


def engines_of(stage: int, **more: object) -> tuple[deepspeed.Engine, deepspeed.Engine]:
    """One that waits at the end of a step, and its twin that does not."""
    first, second = twins(Model)
    plain = engine_of(first, stage, **more)
    os.environ[late_gather.VARIABLE] = "1"
    try:
        late = engine_of(second, stage, **more)
    finally:
        del os.environ[late_gather.VARIABLE]
    return plain, late


def gathers_of(engine: deepspeed.Engine) -> LateGather:
    assert engine.optimizer is not None
    assert engine.optimizer.late_gather is not None
    return engine.optimizer.late_gather


def forwards_wait_bucket_by_bucket(stage: int) -> None:
    plain, late = engines_of(stage, bf16={"enabled": True}, gradient_accumulation_steps=2)
    gathers = gathers_of(late)
    assert plain.optimizer is not None
    assert plain.optimizer.late_gather is None
    left: list[int] = []
    late.module.blocks[0].norm.register_forward_hook(  # type: ignore[union-attr,index]
        lambda *_: left.append(len(gathers._pending))
    )
    assert train(plain, 6) == train(late, 6)
    num_buckets = len(late.placement.trained)
    assert len(gathers._pending) == num_buckets  # nobody has read anything since the last step
    assert left[2] == left[4] > 0  # the first block ran while later ones were on their way
    assert max(left) < num_buckets
    assert_close(whole(plain), whole(late), 1e-9)


def whoever_reads_waits() -> None:
    plain, late = engines_of(1)
    gathers = gathers_of(late)

    def step(number: int) -> None:
        for engine in (plain, late):
            train(engine, 1, number)
        assert gathers._pending

    step(0)
    expected = {name: value.clone() for name, value in plain.module.state_dict().items()}
    found = late.module.state_dict()
    assert not gathers._pending
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    step(1)
    assert torch.equal(late.module.scale, plain.module.scale)  # type: ignore[arg-type]
    assert gathers._pending
    late.module.load_state_dict(expected)  # nothing that is still arriving may overwrite it
    plain.module.load_state_dict(expected)
    for engine in (plain, late):
        assert engine.optimizer is not None
        engine.optimizer.refresh_masters()
    assert_close(whole(plain), whole(late), 1e-9)
    step(2)
    weight = late.module.head.weight
    value = torch.full(weight.shape, 0.5)
    for engine in (plain, late):
        safe_access.safe_set_full_fp32_param(engine.module.head.weight, value)
    assert not gathers._pending
    with torch.no_grad():
        assert late(batch(1)).item() == plain(batch(1)).item()
    step(3)
    late.offload_states()
    late.reload_states()
    assert_close(whole(plain), whole(late), 1e-9)
    step(4)
    for twin in (copy.deepcopy(late.module.blocks), pickle.loads(pickle.dumps(late.module.blocks))):
        theirs = dict(plain.module.blocks.named_parameters())
        assert all(torch.equal(param, theirs[name]) for name, param in twin.named_parameters())
    step(5)
    late.destroy()
    assert type(late.module._parameters) is dict
    theirs = dict(plain.module.named_parameters())
    assert all(torch.equal(param, theirs[name]) for name, param in late.module.named_parameters())
