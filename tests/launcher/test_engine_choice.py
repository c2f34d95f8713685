"""`--engine`: what `import deepspeed` finds in the ranks, and what the launcher says about it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "script.py").write_text(
        "import importlib.metadata as m, importlib.util as u\n"
        "print(u.find_spec('deepspeed').origin, m.version('deepspeed'))\n"
    )
    return "script.py"


@pytest.fixture
def installed(tmp_path: Path) -> str:
    """A folder with a DeepSpeed 9.9 for PYTHONPATH."""
    folder = tmp_path / "site"
    (folder / "deepspeed").mkdir(parents=True)
    (folder / "deepspeed/__init__.py").touch()
    (folder / "deepspeed-9.9.dist-info").mkdir()
    (folder / "deepspeed-9.9.dist-info/METADATA").write_text("Name: deepspeed\nVersion: 9.9\n")
    return str(folder)


@pytest.fixture
def bare(tmp_path: Path) -> tuple[str, ...]:
    """Options for a Python that has neither: a copy of the venv's, with an empty site folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return "--python", str(tmp_path / "bare/bin/python"), "--env", "PYTHONPATH=/none"


def test_the_bundled_engine_stands_in(run: Run, script: str) -> None:
    result = run("--num_gpus=2", script)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("compat/path/deepspeed/__init__.py 0.18.9+dslaunch") == 2
    assert result.stderr.rstrip().endswith(", deepspeed: bundled")


def test_an_installed_deepspeed_is_left_alone(run: Run, script: str, installed: str) -> None:
    for engine in ((), ("--engine=installed",)):
        result = run(*engine, "--env", f"PYTHONPATH={installed}", script)
        assert result.stdout.split() == [f"{installed}/deepspeed/__init__.py", "9.9"]
        assert result.stderr.rstrip().endswith(", deepspeed: 9.9, installed")


def test_bundled_wins_where_it_is_asked_for(run: Run, script: str, installed: str) -> None:
    result = run("--engine=bundled", "--env", f"PYTHONPATH={installed}", script)
    assert "compat/path/deepspeed/__init__.py 0.18.9+dslaunch" in result.stdout


def test_a_folder_named_deepspeed_is_not_deepspeed(run: Run, script: str, tmp_path: Path) -> None:
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed/ds_config.json").touch()
    assert "compat/path/deepspeed/__init__.py 0.18.9+dslaunch" in run(script).stdout


def test_the_bundled_one_does_not_count_as_installed(run: Run, script: str) -> None:
    path = Path(__file__).parents[2] / "compat/path"
    result = run("--engine=installed", "--env", f"PYTHONPATH={path}", script)
    assert result.returncode != 0
    assert "no DeepSpeed for" in result.stderr
    assert "--engine bundled" in result.stderr


def test_a_python_with_neither(run: Run, bare: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('ran')")
    result = run(*bare, "plain.py")
    assert (result.returncode, result.stdout) == (0, "ran\n")
    assert result.stderr.rstrip().endswith(", deepspeed: none")
    result = run(*bare, "--engine=bundled", "plain.py")
    assert (result.returncode != 0, result.stdout) == (True, "")
    assert "no dslaunch for" in result.stderr


def test_the_dry_run_shows_what_is_asked_for(run: Run, script: str) -> None:
    assert json.loads(run("--dry_run=json", "--engine=installed", script).stdout)["engine"] == "installed"
    assert "deepspeed: bundled\n" in run("--dry_run", "--engine=bundled", script).stdout
