"""One rank of the bandwidth benchmark: the engine's bucket collectives beside NCCL's own, as JSON.

Bus bandwidth as nccl-tests has it: bytes of the whole bucket / time * (W - 1) / W. On CPU, gloo through
torch.distributed stands for the raw library.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from dslaunch.engine import collectives

sys.path.insert(0, str(Path(__file__).parent))
from own_host import choose_device  # type: ignore[import-not-found,unused-ignore]

ROUNDS, CALLS = 5, 5
MEGABYTE = 1 << 20

Call = Callable[[], object]


def calls(whole: torch.Tensor, shard: torch.Tensor, raw: object) -> dict[str, Call]:
    """By name: what the engine does for each bucket, and the same without the engine."""
    from nccl import Nccl  # type: ignore[import-not-found,unused-ignore]

    own = whole[dist.get_rank() * shard.numel() :][: shard.numel()]
    if isinstance(raw, Nccl):
        raw_scatter: Call = lambda: raw.reduce_scatter(whole, shard)  # noqa: E731
        raw_gather: Call = lambda: raw.all_gather(whole, own)  # noqa: E731
    else:
        raw_scatter = lambda: collectives.reduce_scatter_flat(shard, whole)  # noqa: E731
        raw_gather = lambda: collectives.all_gather_flat(whole, own.clone())  # noqa: E731
    return {
        "reduce_scatter": lambda: collectives.reduce_scatter(whole, shard).wait(),
        "raw reduce_scatter": raw_scatter,
        "all_gather": lambda: collectives.all_gather(whole, own).wait(),
        "raw all_gather": raw_gather,
    }


def seconds(call: Call, device: torch.device) -> float:
    """Of one call, out of CALLS in a row."""
    dist.barrier()
    _settle(device)
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    _settle(device)
    return (time.perf_counter() - started) / CALLS


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", default="1,8,32,128,512")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    device = choose_device()
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    world = dist.get_world_size()
    raw = None
    if device.type == "cuda":
        from nccl import Nccl

        raw = Nccl()
    found: list[dict[str, object]] = []
    for megabytes in (int(part) for part in options.megabytes.split(",")):
        shard = torch.randn(megabytes * MEGABYTE // 2 // world, device=device).to(torch.bfloat16)
        whole = torch.randn(shard.numel() * world, device=device).to(torch.bfloat16)
        subjects = calls(whole, shard, raw)
        for call in subjects.values():
            call()
        samples: dict[str, list[float]] = {name: [] for name in subjects}
        for _ in range(ROUNDS):  # interleaved, so that a noisy moment hits all
            for name, call in subjects.items():
                samples[name].append(seconds(call, device))
        bytes_on_bus = whole.numel() * 2 * (world - 1) / world
        rates = {name: bytes_on_bus / statistics.median(taken) for name, taken in samples.items()}
        found.append({"megabytes": megabytes, "bytes_per_s": rates})
    if raw is not None:
        raw.close()
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
