"""Checkpoints through NCCL: `python tests/engine/cuda_checkpoint_cases.py`; also run by test_cuda.py.

Two, then four ranks share the first GPU, each claiming a host of its own (`NCCL_HOSTID`). Each world saves at
every stage and dtype, loads what both have saved, and compares bit for bit. Then a larger model is saved, at
once and in the background: a line of JSON tells what a step waits. Exit code 0 if all of it is right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import dslaunch.engine as deepspeed

ROOT = Path(__file__).parents[2]
WAYS = [(1, "bf16"), (2, "fp16"), (3, "bf16"), (3, "fp32"), (0, "bf16")]
ROWS = 16384  # a step computes for about as long as it would in training
NUM_LAYERS, WIDTH = 48, 2048  # 201 million elements: 2.4 GB of masters and moments


def on_rank(directory: Path) -> None:
    from checkpoint_engines import engine_of, train, whole_of
    from snapshot_cases import changes_come_after_the_snapshot

    deepspeed.init_distributed("cpu:gloo,cuda:nccl")
    world, rank = dist.get_world_size(), dist.get_rank()
    for number, (stage, dtype) in enumerate(WAYS):
        keep = {"async": number % 2 == 0}
        engine = engine_of(stage, dtype == "bf16", 1, fp16=dtype == "fp16", checkpoint=keep)
        train(engine, 2, 10 * world + number)
        engine.save_checkpoint(directory, tag=f"{dtype}-{stage}-{world}", client_state={"world": world})
        expected = on_host(whole_of(engine))
        train(engine, 1, 0)  # while it is written
        engine.wait_for_checkpoint()
        if rank == 0:
            torch.save(expected, directory / f"{dtype}-{stage}-{world}.expected")
        dist.barrier()
    wrong, num_loads = [], 0
    for stage, dtype in WAYS:
        engine = engine_of(stage, dtype == "bf16", 2, fp16=dtype == "fp16")
        for path in sorted(directory.glob(f"{dtype}-*.expected")):
            engine.load_checkpoint(directory, path.stem)
            found, expected = on_host(whole_of(engine)), torch.load(path)
            wrong += [f"{path.stem} at {stage}: {n}" for n in found if not same(found[n], expected[n])]
            num_loads += 1
        train(engine, 1, 0)
    told = {"world": world, "loads": num_loads, "wrong": wrong}
    if world == 2:
        for stage, dtype in ((1, "bf16"), (3, "bf16"), (0, "fp32")):
            where = str(directory / f"changes{stage}")
            wrong += changes_come_after_the_snapshot(where, stage, dtype, offload=False)
        told |= stalls(directory)
    if rank == 0:
        print(json.dumps(told), flush=True)
    dist.destroy_process_group()


def on_host(state: dict[str, object]) -> dict[str, object]:
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in state.items()}


def same(a: object, b: object) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b


def stalls(directory: Path) -> dict[str, float]:
    """Seconds that saving holds training up: at once, and in the background once its memory is there.

    `step_s` is a training step alone, `sync_step_s` and `async_step_s` one that a save was begun before.
    """
    found: dict[str, float] = {}
    for name in ("sync", "async"):
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)))
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW"},
            "zero_optimization": {"stage": 1},
            "checkpoint": {"async": name == "async"},
            "log_level": "error",
        }
        engine = deepspeed.initialize(model=model, config=config)[0]
        x = torch.randn(ROWS, WIDTH, device=engine.device, dtype=torch.bfloat16)
        for saves in (False, True, False, True):
            torch.cuda.synchronize()
            dist.barrier()
            start = time.perf_counter()
            if saves:
                engine.save_checkpoint(directory, tag=name)
                found[f"{name}_stall_s"] = time.perf_counter() - start
            engine.backward(engine(x).float().square().mean())
            engine.step()
            torch.cuda.synchronize()
            found[f"{name}_step_s" if saves else "step_s"] = time.perf_counter() - start
            engine.wait_for_checkpoint()
            if saves:
                found[f"{name}_s"] = time.perf_counter() - start
        engine.destroy()
        del engine, model
    return found


def run(world: int, directory: Path) -> int:
    """All ranks on the first GPU; the worst exit code."""
    port = 29500 + os.getpid() % 400 + world
    environ = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, str(directory)]
    ranks = [
        subprocess.Popen(command, env={**environ, "RANK": str(rank), "NCCL_HOSTID": f"host{rank}"})
        for rank in range(world)
    ]
    return max(abs(process.wait()) for process in ranks)


def main() -> int:
    if len(sys.argv) > 1:
        on_rank(Path(sys.argv[1]))
        return 0
    with tempfile.TemporaryDirectory(prefix="dslaunch-checkpoints-") as directory:
        return max(run(world, Path(directory)) for world in (2, 4))


if __name__ == "__main__":
    sys.exit(main())
