"""A benchmark that is killed takes along what it has started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from marked import living, living_after

ROOT = Path(__file__).parents[2]
RANK = """
import os, pathlib, time
pathlib.Path(__file__).with_name(f"up{os.environ['RANK']}").touch()
time.sleep(120)
"""
LAUNCHED = "from benchmarks.multigpu_launch import Where, found_by; found_by(Where('cpu'), 2, {!r}, [])"
ALONE = "from benchmarks.ranks import measure_ranks; measure_ranks(2, {!r}, [])"


@pytest.mark.parametrize("code", [LAUNCHED, ALONE], ids=["launched", "alone"])
def test_nothing_outlives_it(tmp_path: Path, code: str) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    job = f"{tmp_path.name}-{os.getpid()}"
    environ = {**os.environ, "NCCL_TEST_JOB": job, "PYTHONPATH": f"{ROOT / 'scripts'}:{ROOT / 'src'}"}
    with subprocess.Popen(
        [sys.executable, "-c", code.format(str(tmp_path / "rank.py"))], env=environ
    ) as benchmark:
        deadline = time.monotonic() + 60
        while not all((tmp_path / f"up{rank}").exists() for rank in range(2)):
            assert time.monotonic() < deadline
            assert benchmark.poll() is None
            time.sleep(0.02)
        assert len(living("NCCL_TEST_JOB", job)) >= 3
        benchmark.kill()
    assert living_after("NCCL_TEST_JOB", job, 10) == []
