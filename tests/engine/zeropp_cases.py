"""Runs on the ranks: gathers from the node, and in eight bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from zero_models import Model, assert_close, batch, engine_of, live_numel, train, twins, whole

import dslaunch.engine as deepspeed
from dslaunch.engine import collectives, safe_access
from dslaunch.engine.gatherer import _in_backward


@contextmanager
def gathers() -> Iterator[list[tuple[bool, int, torch.dtype]]]:
    """Every all-gather as (in backward, ranks of its group, dtype)."""
    seen: list[tuple[bool, int, torch.dtype]] = []
    original = collectives.all_gather_flat

    def watched(into: torch.Tensor, own: torch.Tensor, **named: object) -> object:
        seen.append((_in_backward(), dist.get_world_size(named.get("group")), own.dtype))  # type: ignore[arg-type]
        return original(into, own, **named)

    collectives.all_gather_flat = watched  # type: ignore[assignment]
    try:
        yield seen
    finally:
        collectives.all_gather_flat = original


def backward_gathers_inside_the_node() -> None:
    first, second = twins(lambda: Model(recompute=False))
    first.place.weight.requires_grad_(False)
    second.place.weight.requires_grad_(False)
    plain = engine_of(first, bf16={"enabled": True})
    hpz = engine_of(second, bf16={"enabled": True}, zero={"zero_hpz_partition_size": 2})
    with gathers() as seen:
        losses = train(hpz, 2)
    assert {ranks for backward, ranks, _ in seen if backward} == {2}
    assert {ranks for backward, ranks, _ in seen if not backward} == {2, 4}
    with gathers() as seen:
        losses += train(hpz, 2, 2)
    # Across nodes, a step gathers every bucket once: sharded ones in forward, the others after the step.
    buckets = [*hpz.placement.trained, *hpz.placement.frozen]
    assert sum(ranks == 4 for _, ranks, _ in seen) == 2 * len(buckets)
    assert losses == train(plain, 4)
    assert_close(whole(plain), whole(hpz), 1e-9)
    assert live_numel(hpz) == 0
    assert all(bucket.second is None for bucket in hpz.placement.sharded)


def a_second_shard_never_outlives_what_it_was_cut_from() -> None:
    """Accumulation, evaluation in between, an edit between forward and backward."""
    first, second = twins(Model)
    more = {"gradient_accumulation_steps": 2}
    plain = engine_of(first, **more)  # type: ignore[arg-type]
    hpz = engine_of(second, zero={"zero_hpz_partition_size": 2}, **more)  # type: ignore[arg-type]
    for engine in (plain, hpz):
        train(engine, 2)
        with torch.no_grad():
            engine(batch(7))
        loss = engine(batch(3))
        weight = engine.module.blocks[1].mlp[0].weight  # type: ignore[union-attr,index]
        with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
            weight.data.mul_(0.5)
        engine.backward(loss)
        engine.step()
        train(engine, 3, 4)
    assert_close(whole(plain), whole(hpz), 1e-9)


def weights_travel_in_eight_bits(dtype: str) -> None:
    first, second = twins(Model)
    low = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    plain = engine_of(first, **low)
    ranks = dist.get_world_size()
    node = {"zero_hpz_partition_size": ranks // 2} if ranks > 2 else {}
    engine = engine_of(second, zero={"zero_quantized_weights": True, **node}, **low)
    exact = whole(engine)
    assert_close(whole(plain), exact, 1e-9)
    weight = engine.module.blocks[0].mlp[0].weight  # type: ignore[union-attr,index]
    seen: list[torch.Tensor] = []
    handle = engine.module.blocks[0].mlp.register_forward_hook(  # type: ignore[union-attr,index]
        lambda *_: seen.append(weight.detach().float().clone())
    )
    with gathers() as sent:
        losses = train(engine, 1)
    handle.remove()
    assert torch.uint8 in {kind for _, ranks_of, kind in sent if ranks_of == ranks}
    step = exact["blocks.0.mlp.0.weight"].float().abs().max() / 127
    gap = (seen[0] - exact["blocks.0.mlp.0.weight"].float()).abs().max()
    assert 0 < gap <= 0.52 * step
    assert losses + train(engine, 5, 1) == pytest.approx(train(plain, 6), rel=0.02)
    together = [torch.empty_like(seen[0]) for _ in range(ranks)]
    dist.all_gather(together, seen[0])
    assert all(torch.equal(other, seen[0]) for other in together)
    # What is saved and read is exact, also in the middle of a pass.
    loss = engine(batch(9))
    master = safe_access.safe_get_full_fp32_param(weight)
    assert master is not None
    read = whole(engine)
    assert torch.equal(read["blocks.0.mlp.0.weight"], master.to(weight.dtype))
    engine.backward(loss)
    engine.step()
    assert live_numel(engine) == 0


def a_node_that_does_not_divide_the_ranks() -> None:
    with pytest.raises(deepspeed.EngineError, match="zero_hpz_partition_size: 4 ranks are no multiple of 3"):
        engine_of(Model(1), zero={"zero_hpz_partition_size": 3})
