"""Run by test_cuda.py as a process of its own: one rank, one GPU, a real NCCL group. Prints what it finds
as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile

import torch
import torch.distributed as dist
from checkpoint_cases import resume_is_exact
from equivalence_cases import Case, run

import dslaunch.engine as deepspeed
from dslaunch.engine import collectives


def cases() -> list[Case]:
    kinds = ("tied", "frozen", "unused", "branch")
    return [
        Case(
            f"{stage}-{bf16}-{accum}",
            stage,
            bf16,
            3,
            0.5,
            kinds,
            groups=True,
            grad_accum=accum,
            zero={"reduce_bucket_size": 300},
        )
        for stage in (0, 1)
        for bf16, accum in ((False, None), (True, None), (True, "fp32"))
    ]


def check_collectives() -> None:
    """A group of one rank still goes through NCCL: the calls, the averaging, the aliasing of shard and
    bucket.
    """
    for dtype in (torch.float32, torch.bfloat16):
        bucket = torch.arange(128, dtype=dtype, device="cuda")
        for start in (
            lambda b: collectives.reduce_scatter_mean(b, b[:]),
            lambda b: collectives.all_reduce_mean(b),
            lambda b: collectives.all_gather(b, b[:]),
        ):
            result = bucket.clone()
            pending = start(result)
            pending.wait()
            assert pending.divide is None
            assert torch.equal(result, bucket)
        collectives.broadcast(bucket)
    assert collectives.agree([1, 2], torch.device("cuda"))


if __name__ == "__main__":
    deepspeed.init_distributed()
    assert dist.is_initialized()
    check_collectives()
    with tempfile.TemporaryDirectory() as directory:
        resume_is_exact(directory, 1, True, 5)
    json.dump(run(cases(), int(sys.argv[1]), "cuda"), sys.stdout)
