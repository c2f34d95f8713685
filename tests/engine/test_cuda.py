"""The engine on GPUs with NCCL, on one, two and four ranks; skipped where there are none.

Ranks may share a GPU: NCCL takes them where each claims a host of its own.

Tolerances as in test_equivalence.py, wider in fp32 as TF32 is off but sums run in another order.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
LR, NUM_STEPS = 0.01, 4


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
        ended = [process.communicate(timeout=100) for process in reversed(started)][::-1]
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


@pytest.mark.parametrize("world", [1, 2, 4])
def test_gpus_train_as_a_plain_loop(world: int, seed: int, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    for name, far in json.loads(run_ranks(world, str(seed), str(tmp_path))).items():
        assert far["agree"] == far["same_names"] == 1, (name, far)
        rounded = "16" in name
        assert far["loss"] < (0.02 if rounded else 1e-4), (seed, name, far)
        assert far["norm"] < (0.02 if rounded else 1e-4), (seed, name, far)
        assert far["master_max"] <= (2 * LR * NUM_STEPS if rounded else 1e-4), (seed, name, far)
        assert far["master_mean"] < 0.02 * LR * NUM_STEPS, (seed, name, far)


def test_checkpoints_come_back_at_another_world_size() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    ran = subprocess.run(
        [sys.executable, str(HERE / "cuda_checkpoint_cases.py")], env=environ, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [(one["world"], one["loads"], one["wrong"]) for one in told] == [(2, 11, []), (4, 22, [])]
