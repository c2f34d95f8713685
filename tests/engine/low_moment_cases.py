"""Runs on the ranks: moments in bf16."""

from __future__ import annotations

import torch
from equivalence_cases import Case, Net, full_state, groups_of
from offload_cases import engine_of, some_steps
from zero_models import Model, train
from zero_models import engine_of as model_engine_of

import dslaunch.engine as deepspeed
from dslaunch.engine.ops import FusedAdamW

KINDS = ("exp_avg", "exp_avg_sq")


def case_of(stage: int, moments: str) -> Case:
    zero: dict[str, object] = {"reduce_bucket_size": 300, "stage3_param_persistence_threshold": 20}
    return Case("", stage, True, clipping=0.5, zero=zero, moments=moments)


def dtypes_of(engine: deepspeed.Engine) -> set[torch.dtype]:
    assert engine.optimizer is not None
    return {state.states[kind].dtype for state in engine.optimizer.shards for kind in KINDS}


def learns_as_much(seed: int) -> list[tuple[float, float]]:
    """Of each stage the losses after some steps with moments of fp32 and of bf16."""
    found = []
    for stage in (1, 3):
        last = []
        for dtype in ("fp32", "bf16"):
            torch.manual_seed(seed)
            optimizer = {"type": "AdamW", "params": {"lr": 1e-2, "moment_dtype": dtype}}
            engine = model_engine_of(Model(), stage, bf16={"enabled": True}, optimizer=optimizer)
            assert dtypes_of(engine) == {torch.bfloat16 if dtype == "bf16" else torch.float32}
            losses = train(engine, 25)
            last.append(sum(losses[-5:]) / 5)
        found.append((last[0], last[1]))
    return found


def checkpoints(directory: str, seed: int, saves: bool) -> dict[str, float]:
    """Saved by some ranks, loaded by others into engines with moments of both kinds; sums of them."""
    if saves:
        source = engine_of(case_of(2, "bf16"), seed)
        some_steps(source, seed)
        source.save_checkpoint(directory, "low")
        low = {kind: full_state(source, kind) for kind in KINDS}
    else:
        low = {}
        for stage, moments in ((1, "bf16"), (3, "bf16"), (3, "fp32")):
            target = engine_of(case_of(stage, moments), seed + 1)
            target.load_checkpoint(directory, "low")
            loaded = {kind: full_state(target, kind) for kind in KINDS}
            assert dtypes_of(target) == {torch.bfloat16 if moments == "bf16" else torch.float32}
            for kind, tensors in low.items():
                assert all(torch.equal(tensor, loaded[kind][name]) for name, tensor in tensors.items())
            low = loaded
            some_steps(target, seed + 2)
    return {f"{kind} {name}": t.double().sum().item() for kind, ts in low.items() for name, t in ts.items()}


def a_client_brings_its_own(seed: int) -> None:
    torch.manual_seed(seed)
    net = Net(())
    client = FusedAdamW(groups_of(net, case_of(1, "fp32")), moment_dtype=torch.bfloat16)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
    }
    engine = deepspeed.initialize(model=net, optimizer=client, config={**config, "log_level": "error"})[0]
    some_steps(engine, seed)
    assert dtypes_of(engine) == {torch.bfloat16}
