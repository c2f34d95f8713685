"""Start the ranks of a benchmark side by side on this machine, without a launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.process_tree import BenchmarkError
from dslaunch.runner_backends.group import bound_to_us

ROOT = Path(__file__).parents[2]
PAYLOAD = ROOT / "scripts/benchmarks/payload"
_TIMEOUT_S = 1200
_LAST_WORDS = 2000


def measure_ranks(world: int, script: str, arguments: Sequence[str], devices: str = "") -> Any:
    """The JSON in the last line of rank 0 of a payload script. BenchmarkError where a rank fails.

    `devices` is CUDA_VISIBLE_DEVICES, empty for the CPU.
    """
    common = {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(figures.free_port()),
        "CUDA_VISIBLE_DEVICES": devices,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    started = [
        subprocess.Popen(
            bound_to_us((sys.executable, str(PAYLOAD / script), *arguments)),
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        ended = [process.communicate(timeout=_TIMEOUT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, said) in zip(started, ended, strict=True):
        if process.returncode:
            raise BenchmarkError(f"a rank ended with {process.returncode}: {said[-_LAST_WORDS:]}")
    return json.loads(ended[0][0].splitlines()[-1])
