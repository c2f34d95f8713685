"""Run by test_cuda.py, one process a GPU, in a real NCCL group. Prints what it finds as JSON."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from checkpoint_cases import resume_is_exact
from equivalence_cases import Case, run

import dslaunch.engine as deepspeed
from dslaunch.engine import collectives


def cases() -> list[Case]:
    kinds = ("tied", "frozen", "unused")
    return [
        Case(
            f"{stage}-{dtype}-{accum}",
            stage,
            dtype == "bf16",
            dtype == "fp16",
            3,
            0.5,
            kinds if stage == 3 else (*kinds, "branch"),
            groups=True,
            grad_accum=accum,
            zero={
                "reduce_bucket_size": 300,
                "stage3_param_persistence_threshold": 20,
                "stage3_max_live_parameters": 500,  # fewer than there are: one rank gathers too
            },
        )
        for stage in (0, 1, 2, 3)
        for dtype, accum in (("fp32", None), ("bf16", None), ("bf16", "fp32"), ("fp16", None))
    ]


def check_collectives() -> None:
    """Through NCCL even on one rank: the calls, the averaging, the aliasing of shard and bucket."""
    world, rank = dist.get_world_size(), dist.get_rank()
    own = slice(rank * 128 // world, (rank + 1) * 128 // world)
    for dtype in (torch.float32, torch.bfloat16):
        base = (torch.arange(128, device="cuda") % 32).to(dtype)  # exact in bf16, halves too
        mean = base + (world - 1) / 2
        scattered, reduced, gathered = base + rank, base + rank, torch.zeros_like(base)
        gathered[own] = base[own]
        for pending in (
            collectives.reduce_scatter(scattered, scattered[own]),
            collectives.all_reduce(reduced),
            collectives.all_gather(gathered, gathered[own]),
        ):
            pending.wait()
            assert pending.divide is None  # NCCL averages by itself
        assert torch.equal(scattered[own], mean[own])
        assert torch.equal(reduced, mean)
        assert torch.equal(gathered, base)
        collectives.broadcast(base)
    assert collectives.agree([1, 2], torch.device("cuda"))
    assert collectives.agree([rank], torch.device("cuda")) == (world == 1)


if __name__ == "__main__":
    deepspeed.init_distributed()
    check_collectives()
    directory = sys.argv[2]
    for stage in (0, 1, 2, 3):
        resume_is_exact(f"{directory}/stage{stage}", stage, True, 5)
    found = run(cases(), int(sys.argv[1]), "cuda")
    if dist.get_rank() == 0:
        json.dump(found, sys.stdout)
