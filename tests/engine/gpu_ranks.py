"""Ranks on this machine's GPUs. They may share one: NCCL takes them where each claims a host of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def run_ranks(world: int, *arguments: str, script: str = "cuda_cases.py") -> str:
    """What rank 0 of `script` prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    environ["PYTHONPATH"] = str(HERE.parents[1] / "src")
    if world > 1:
        environ |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            env={**environ, **place_of(rank, world)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        ended = [process.communicate(timeout=300) for process in reversed(started)][::-1]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * world, [err for _, err in ended]
    return ended[0][0]


def place_of(rank: int, world: int) -> dict[str, str]:
    """The rank's own variables."""
    num_gpus = torch.cuda.device_count()
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank % num_gpus)} if world > 1 else {}
    return {**place, "NCCL_HOSTID": f"host{rank}"} if world > num_gpus else place
