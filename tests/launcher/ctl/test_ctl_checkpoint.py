"""`dslaunchctl checkpoint` hands on to the engine's tool, and its exit code back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Run

THEIRS = Path(__file__).parents[2] / "engine/deepspeed_checkpoints/stage3-bf16-world2"


def test_a_checkpoint_of_deepspeed_is_converted_and_looked_into(run: Run, tmp_path: Path) -> None:
    ran = run("checkpoint", "convert", str(THEIRS), "-ours", "--to", "dslaunch", "--ranks", "3")
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", ran.stderr)  # it looks like an option
    ran = run("checkpoint", "convert", "--to", "dslaunch", "--ranks", "3", "--", str(THEIRS), "-ours")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "-ours/global_step3\n", "")
    ran = run("checkpoint", "inspect", "--json", "--verify", "--", "-ours")
    told = json.loads(ran.stdout)
    assert (ran.returncode, told["format"], told["damage"]) == (0, "dslaunch", [])
    assert (told["zero_stage"], told["client_state"]) == (3, ["note", "step"])
