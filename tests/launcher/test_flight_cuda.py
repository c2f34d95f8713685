"""A real NCCL job that hangs, and what its flight recorders say."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SCRIPT = str(Path(__file__).with_name("skipped_collective.py"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_the_rank_that_left_a_collective_out_is_named(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    flags = ("--num_gpus=2", "--accelerator=cpu", "--hang_timeout=4", "--grace=2", "--run_dir=run")
    result = run(*flags, SCRIPT, env={"CUDA_VISIBLE_DEVICES": "0"}, timeout_s=150)
    assert result.returncode == 112, result.stderr
    assert "(#3 of default_pg) was entered by rank 0 and not by rank 1  <- missing" in result.stderr
    assert {path.name for path in (tmp_path / "run/flight").iterdir()} == {"rank_0", "rank_1"}
