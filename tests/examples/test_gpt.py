"""The GPT example as a user runs it: the real dslaunch command, real ranks on this machine's CPU."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from marked import living_after

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "gpt"
DSLAUNCH = Path(sys.executable).parent / "dslaunch"
SMALL = ("--dim", "32", "--num_layers", "1", "--num_heads", "2", "--context", "32", "--log_every", "1")
NUM_STEPS, NUM_STEPS_BEFORE_STOP = 40, 30
TOLERANCE = 0.01
"""Nats, of losses from 5.6 to 3.6. Measured: 0.0001; other CPUs may sum bf16 gradients in another order."""


@dataclass(frozen=True)
class Training:
    """What a run printed."""

    losses: dict[int, float]  # by optimizer step, the first is 1
    validation_loss: float
    output: str


def train(
    num_ranks: int, *args: str, stage: int = 1, folder: Path | None = None, steps: int = NUM_STEPS
) -> Training:
    config = EXAMPLE / "ds_config.json"
    if stage != 1:
        assert folder is not None
        settings = json.loads(config.read_text())
        settings["zero_optimization"]["stage"] = stage
        settings["gradient_accumulation_steps"] = 4 // num_ranks  # the same global batch
        config = folder / "ds_config.json"
        config.write_text(json.dumps(settings))
    command = [str(DSLAUNCH), "--num_gpus", str(num_ranks), str(EXAMPLE / "train.py"), *SMALL, *args]
    done = subprocess.run(
        [*command, "--deepspeed_config", str(config), "--steps", str(steps)],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    steps_seen = re.findall(rf"step (\d+)/{steps}  loss (\S+)  [\d,]+ tokens/s", done.stdout)
    validation = re.search(r"validation loss (\S+)", done.stdout)
    assert validation is not None, done.stdout
    return Training({int(step): float(loss) for step, loss in steps_seen}, float(validation[1]), done.stdout)


@pytest.fixture(scope="module")
def on_two_ranks() -> Training:
    """An uninterrupted run on two ranks, ZeRO stage 1."""
    return train(2)


def check_that_it_learns(training: Training) -> None:
    losses = training.losses
    assert list(losses) == list(range(1, NUM_STEPS + 1))
    assert losses[1] == pytest.approx(5.55, abs=0.1), "an untrained model knows nothing: ln 256"
    assert losses[NUM_STEPS] < losses[1] - 1
    assert training.validation_loss == pytest.approx(losses[NUM_STEPS], abs=0.5)


def test_one_rank_learns() -> None:
    check_that_it_learns(train(1))


def test_two_ranks_learn(on_two_ranks: Training) -> None:
    check_that_it_learns(on_two_ranks)


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(on_two_ranks: Training, tmp_path: Path) -> None:
    save_dir = ("--save_dir", str(tmp_path / "checkpoints"))
    train(2, *save_dir, steps=NUM_STEPS_BEFORE_STOP)
    resumed = train(2, *save_dir, "--resume")
    checkpoint = tmp_path / "checkpoints" / f"global_step{NUM_STEPS_BEFORE_STOP}"
    assert f"resumed from {checkpoint} at step {NUM_STEPS_BEFORE_STOP}\n" in resumed.output
    assert list(resumed.losses) == list(range(NUM_STEPS_BEFORE_STOP + 1, NUM_STEPS + 1))
    rest = {step: on_two_ranks.losses[step] for step in resumed.losses}
    assert resumed.losses == pytest.approx(rest, abs=TOLERANCE)
    assert resumed.validation_loss == pytest.approx(on_two_ranks.validation_loss, abs=TOLERANCE)


def test_a_killed_run_goes_on_at_another_world_size_and_stage(on_two_ranks: Training, tmp_path: Path) -> None:
    """Killed after a random step, whatever it is doing then."""
    checkpoints = tmp_path / "checkpoints"
    command = [str(DSLAUNCH), "--num_gpus", "2", str(EXAMPLE / "train.py"), *SMALL, "--save_every", "3"]
    config = ("--deepspeed_config", str(EXAMPLE / "ds_config.json"), "--steps", "400")
    last = random.randint(3, 20)
    killed = subprocess.Popen(
        [*command, *config, "--save_dir", str(checkpoints)],
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "NCCL_TEST_JOB": str(tmp_path),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert killed.stdout is not None
    with killed.stdout:
        for line in killed.stdout:
            if (done := re.search(r"step (\d+)/400 ", line)) and int(done[1]) > last:
                killed.kill()
                break
    killed.wait()
    assert living_after("NCCL_TEST_JOB", str(tmp_path), 20) == []  # its ranks may save once more meanwhile
    step = int((checkpoints / "latest").read_text().removeprefix("global_step"))
    resumed = train(4, "--save_dir", str(checkpoints), "--resume", stage=3, folder=tmp_path)
    assert f"resumed from {checkpoints / f'global_step{step}'} at step {step}\n" in resumed.output
    assert list(resumed.losses) == list(range(step + 1, NUM_STEPS + 1))
    rest = {number: on_two_ranks.losses[number] for number in resumed.losses}
    assert resumed.losses == pytest.approx(rest, abs=TOLERANCE)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_every_stage_gives_the_same_losses(on_two_ranks: Training, tmp_path: Path, stage: int) -> None:
    other = train(2, stage=stage, folder=tmp_path)
    assert f"ZeRO stage {stage}" in other.output
    assert "ZeRO stage 1" in on_two_ranks.output
    assert other.losses == pytest.approx(on_two_ranks.losses, abs=TOLERANCE)
    assert other.validation_loss == pytest.approx(on_two_ranks.validation_loss, abs=TOLERANCE)
