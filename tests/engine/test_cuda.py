"""The engine on one GPU with NCCL; skipped where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_one_gpu_trains_as_a_plain_loop(seed: int) -> None:
    environ = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "cuda_cases.py"), str(seed)],
        env={**environ, "PYTHONPATH": str(HERE.parents[1] / "src")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name, far in json.loads(done.stdout).items():
        assert far["agree"] == far["same_names"] == 1, (name, far)
        assert far["loss"] < 1e-4, (seed, name, far)
        assert far["norm"] < 1e-4, (seed, name, far)
        assert far["master_max"] < 1e-4, (seed, name, far)
