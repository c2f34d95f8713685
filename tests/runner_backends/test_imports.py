"""What it costs to import this room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    "module", ["", ".command", ".errors", ".local", ".openssh", ".pdsh", ".slurm", ".openmpi", ".hydra"]
)
def test_no_ssh_library_is_loaded(module: str) -> None:
    code = (
        f"import sys, dslaunch.runner_backends{module}\n"
        "print(*sorted({'asyncssh', 'paramiko', 'cryptography', 'torch'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("\n", "", 0)
