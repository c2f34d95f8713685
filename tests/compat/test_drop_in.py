"""Scripts and Hugging Face's libraries on two ranks that dslaunch starts: losses as without an engine.

Some of `trainer_cases.py`; `scripts/trainers` runs them all.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

HERE = Path(__file__).parent
DSLAUNCH = (sys.executable, "-c", "import sys; from dslaunch.launcher.cli import main; sys.exit(main())")
TRAINER = ("stage_2", "stage_3", "config_optimizer", "resume", "pretrained_in_shards", "lora")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainer")


def launch(num_ranks: int, script: str, *arguments: object) -> list[str]:
    """What rank 0 has said of its cases."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    options = ("--accelerator=cpu", f"--num_gpus={num_ranks}", "--engine=bundled")
    result = subprocess.run(
        [*DSLAUNCH, *options, str(HERE / script), *map(str, arguments)],
        env=environ, cwd=HERE, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line.rpartition("] ")[2] for line in result.stdout.splitlines() if "case " in line]
    return [" ".join(line.split()[1:3]) for line in lines]


def test_trainer(folder: Path) -> None:
    assert launch(2, "trainer_cases.py", folder, *TRAINER) == [f"{case} ok" for case in TRAINER]


def test_trainer_on_one_rank_goes_on_from_two(folder: Path) -> None:
    """It needs what the case `resume` has saved."""
    case = "resume_at_another_world_size"
    assert launch(1, "trainer_cases.py", folder, case) == [f"{case} ok"]


def test_accelerate(folder: Path) -> None:
    cases = ("stages", "state", "config_file", "two_models", "options")
    assert launch(2, "accelerate_cases.py", folder) == [f"{case} ok" for case in cases]


def test_lightning(folder: Path) -> None:
    cases = ("trainer", "fabric")
    assert launch(2, "lightning_cases.py", folder / "lightning") == [f"{case} ok" for case in cases]


def test_the_example_runs_unchanged(folder: Path) -> None:
    example = HERE.parents[1] / "examples/hf_trainer"
    options = "--max_steps 4 --hidden_size 32 --context 32 --report_to none --save_strategy no"
    launch(
        *(2, "run_on_cpu.py", example / "train.py", "--deepspeed", example / "ds_config.json"),
        *("--text", HERE.parents[1] / "docs/engine.md", "--output_dir", folder / "model", *options.split()),
    )
    weights = load_file(folder / "model/model.safetensors")
    assert weights["model.embed_tokens.weight"].shape == (256, 32)


def test_scripts_written_for_deepspeed(folder: Path) -> None:
    cases = ("images", "language", "adversaries", "encoder", "generation")
    assert launch(2, "script_cases.py", folder / "scripts") == [f"{case} ok" for case in cases]
