"""Watching a run on a GPU: events instead of waiting, and numbers that can be true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_watched_run_on_a_gpu(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environ["PYTHONPATH"] = str(HERE.parents[1] / "src")
    ran = subprocess.run(
        [sys.executable, str(HERE / "cuda_watch.py"), str(tmp_path)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    [times] = [line for line in found["lines"] if "time (ms)" in line and "fwd" in line][:1]
    milliseconds = [float(value) for value in re.findall(r": (\d+\.\d+)", times)]
    assert len(milliseconds) == 3
    assert all(value > 0 for value in milliseconds)
    [speed] = [line for line in found["lines"] if "SamplesPerSec" in line]
    assert re.search(r"CurrSamplesPerSec=[\d.e+]+, MemAllocated=0\.\d+GB, MaxMemAllocated=0\.\d+GB", speed)
    macs = 8 * 256 * 1024 * 1024 / 1e9
    assert f"fwd MACs per rank:        {macs:.2f} GMACs" in found["flops"]
    assert len(found["losses"]) == 7
