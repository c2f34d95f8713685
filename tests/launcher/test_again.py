"""What a bad end tells beside its cause: the rank as values, its log, and the command to go on with."""

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

from dslaunch.launcher.again import command_again

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SAVES_AND_FAILS = """
import os, sys
if os.environ["RANK"] == "1":
    if "saves" in sys.argv:
        open(os.environ["DSLAUNCH_PROGRESS_FILE"], "w").write("global_step7")
    raise RuntimeError("boom")
"""


def test_the_verdict_tells_rank_host_log_and_command(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES_AND_FAILS)
    result = run("--num_gpus=2", "--run_dir=out", "--env", "API_TOKEN=secret", "train.py", "a b")
    assert result.returncode == 1
    verdict = json.loads((tmp_path / "out/verdict.json").read_text())
    where = verdict["where"]
    assert (where["host"], where["rank"], where["local_rank"], where["device"]) == ("localhost", 1, 1, "cpu")
    assert where["how"] == "exited with code 1"
    assert where["last_lines"][-1] == "RuntimeError: boom"
    assert where["log"] == "out/logs/rank1.log"
    assert (tmp_path / where["log"]).read_text().endswith("RuntimeError: boom\n")
    assert verdict["command"] == ("dslaunch --num_gpus=2 --run_dir=out --env 'API_TOKEN=****' train.py 'a b'")
    assert "dslaunch: all that it wrote: out/logs/rank1.log" in result.stderr.splitlines()
    assert "to go on" not in result.stderr


def test_with_a_checkpoint_the_command_goes_on_from_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES_AND_FAILS)
    result = run("--num_gpus=2", "--run_dir=out", "train.py", "saves")
    again = "dslaunch --env DSLAUNCH_RESUME=1 --num_gpus=2 --run_dir=out train.py saves"
    assert result.stderr.splitlines()[-1] == f"dslaunch: to go on from checkpoint global_step7: {again}"
    assert json.loads((tmp_path / "out/verdict.json").read_text())["command"] == again


def test_secrets_of_a_command_are_masked_and_the_rest_is_not() -> None:
    words = ["--env=HF_TOKEN=x y", "--env", "PATH_KEY=z", "train.py", "--lr=1e-4", "key"]
    told = shlex.split(command_again(words, resumes=False))
    assert told == [
        "dslaunch",
        "--env=HF_TOKEN=****",
        "--env",
        "PATH_KEY=****",
        "train.py",
        "--lr=1e-4",
        "key",
    ]
