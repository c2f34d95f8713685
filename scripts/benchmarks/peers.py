"""The launchers to compare with, where this machine has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_BIN = Path(sys.executable).parent
DSLAUNCH = str(_BIN / "dslaunch")

DEEPSPEED_ENVIRON = {"DS_ACCELERATOR": "cpu", "DS_IGNORE_CUDA_DETECTION": "1", "LOCAL_SIZE": "64"}
"""Without these deepspeed looks for GPUs, and takes no more ranks than it finds."""


def find(program: str) -> str | None:
    """Path of a program, one beside this interpreter first."""
    return shutil.which(program, path=f"{_BIN}:{os.environ.get('PATH', os.defpath)}")


def environ(**more: str) -> Mapping[str, str]:
    """The caller's, on CPU slots, with bytecode caches as an installed program has them."""
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **more}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    return variables


@cache
def is_open_mpi(mpirun: str) -> bool:
    """Whether this mpirun is Open MPI's, whose options are used here."""
    done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return "Open MPI" in done.stdout


def open_mpi() -> list[str] | None:
    """The words to start Open MPI's mpirun with, or None where there is none."""
    mpirun = find("mpirun")
    if mpirun is None or not is_open_mpi(mpirun):
        return None
    return [mpirun, *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
