"""The engine on GPUs with NCCL, on one, two and four ranks; skipped where there are none.

Tolerances as in test_equivalence.py, wider in fp32 as TF32 is off but sums run in another order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_ranks import HERE, LAUNCHED, run_ranks

LR, NUM_STEPS = 0.01, 4


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
