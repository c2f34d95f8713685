"""Runs on the ranks: engines as wholes, what they keep and what they cost."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from zero_models import Model, assert_close, batch, engine_of, live_numel, train, twins, whole

from dslaunch.engine.sharded import ShardedBucket


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


def live_bytes(stage: int, accumulate_in_fp32: bool, max_live: int = 10**9) -> dict[str, float]:
    """Bytes this rank's engine holds when all gradients have arrived, by kind, for `numel` parameters.

    `idle`: of gradients between steps.
    """
    more: dict[str, object] = {"data_types": {"grad_accum_dtype": "fp32"}} if accumulate_in_fp32 else {}
    zero = {"reduce_bucket_size": 60_000, "stage3_max_live_parameters": max_live}
    engine = engine_of(Model(6, width=48), stage, bf16={"enabled": True}, zero=zero, **more)
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

    buckets, reducer = optimizer.buckets, optimizer.reducer
    idle = sum(count(bucket.grads, bucket.grad_shard) for bucket in buckets)
    idle += sum(count(buffer) for buffer in getattr(reducer, "_buffers", []))
    engine.backward(engine(batch(5)))
    reducer.finish()
    found = {
        "numel": sum(slot.numel for bucket in buckets for slot in bucket.spec.slots),
        "padded": sum(bucket.spec.numel for bucket in buckets),
        "states": sum(count(s.master.kept, *s.states.values()) for s in optimizer.shards),
        "params": sum(count(bucket.params, bucket.param_shard) for bucket in buckets),
        "members": sum(count(param.data) for bucket in buckets for param in bucket.members),
        "grads": sum(count(bucket.grads, bucket.grad_shard) for bucket in buckets),
        "leaves": sum(count(param.grad) for bucket in buckets for param in bucket.members),
        "buffers": sum(count(buffer) for buffer in getattr(reducer, "_buffers", [])),
        "largest": max(bucket.spec.numel for bucket in buckets),
        "resident": sum(b.spec.numel for b in buckets if not isinstance(b, ShardedBucket)),
        "idle": idle,
    }
    return {name: float(value) for name, value in found.items()}


def one_rank_gathers_what_is_large() -> None:
    """Beyond stage3_max_live_parameters a single rank casts its masters block by block; same values."""
    first, second = twins(Model)
    more: dict[str, object] = {"bf16": {"enabled": True}, "gradient_accumulation_steps": 2}
    plain = engine_of(first, 0, **more)
    engine = engine_of(second, zero={"stage3_max_live_parameters": 1000}, **more)
    assert engine.placement.sharded
    assert train(plain, 6) == train(engine, 6)
    assert_close(whole(plain), whole(engine), 1e-9)
    assert live_numel(engine) == 0
