"""Shared by the launcher's tests: the command as a process, and values to plan with."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dslaunch.launcher.devices import LocalDevices
from dslaunch.launcher.machine import Machine

PYTHON = sys.executable
DSLAUNCH = (PYTHON, "-c", "import sys; from dslaunch.launcher.cli import main; sys.exit(main())")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A login node without devices, its home and current folder empty."""
    home, cwd = tmp_path / "home", tmp_path / "cwd"
    home.mkdir()
    cwd.mkdir()
    return Machine(
        environ={"PATH": "/usr/bin"},
        cwd=cwd,
        home=home,
        count_devices=lambda accelerator: LocalDevices("cpu", 0),
        num_cpus=4,
        names=frozenset({"localhost", "login"}),
    )


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """What the command finds in its environment; HOME is empty."""
    source = Path(__file__).parents[2] / "src"
    keep = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TERM")}
    return {**keep, "HOME": str(tmp_path), "PYTHONPATH": str(source)}


@pytest.fixture
def start(tmp_path: Path, environ: Mapping[str, str]) -> Start:
    """Start `dslaunch` in an empty folder, in a session of its own, with pipes."""

    def start(
        *argv: str, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*DSLAUNCH, *argv],
            cwd=tmp_path,
            env={**environ, **(env or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    return start


@pytest.fixture
def run(start: Start) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run `dslaunch` to its end; output as text with surrogateescape."""

    def run(
        *argv: str, env: Mapping[str, str] | None = None, timeout_s: float = 60
    ) -> "subprocess.CompletedProcess[str]":
        with start(*argv, env=env) as process:
            out, err = process.communicate(timeout=timeout_s)
        decoded = (data.decode("utf-8", "surrogateescape") for data in (out, err))
        return subprocess.CompletedProcess(argv, process.returncode, *decoded)

    return run
