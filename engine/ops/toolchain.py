"""The compilers of this machine: which there are, and running them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

_NVCC_PLACES = ("/usr/local/cuda/bin/nvcc", "/opt/cuda/bin/nvcc")
_MAX_SHOWN_LINES = 40


class BuildError(RuntimeError):
    """A compiler refused. The text ends with the compiler's own first lines."""


class NoCompilerError(BuildError):
    """There is none."""


def cxx() -> list[str]:
    """The C++ compiler, `$CXX` (which may have arguments) before g++, c++ and clang++."""
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for name in ("g++", "c++", "clang++"):
        if path := shutil.which(name):
            return [path]
    raise NoCompilerError(
        "no C++ compiler found\nhint: install g++ (Debian: apt install g++), or name one: CXX=..."
    )


def nvcc() -> str | None:
    """The CUDA compiler, from `$CUDA_HOME` before PATH; None where there is none."""
    home = os.environ.get("CUDA_HOME")
    candidates = [os.path.join(home, "bin", "nvcc")] if home else []
    candidates += [shutil.which("nvcc") or "", *_NVCC_PLACES]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def run(command: Sequence[str]) -> str:
    """What the command printed. Raises BuildError with the command and its own words."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise NoCompilerError(f"cannot run {command[0]}: {error.strerror}") from error
    if ended.returncode != 0:
        said = (ended.stderr + ended.stdout).strip().splitlines()
        if len(said) > _MAX_SHOWN_LINES:
            said = [*said[:_MAX_SHOWN_LINES], f"... {len(said) - _MAX_SHOWN_LINES} more lines"]
        raise BuildError("\n".join([f"the kernels do not compile: {shlex.join(command)}", *said]))
    return ended.stdout


def run_all(commands: Sequence[Sequence[str]]) -> None:
    """Run them side by side, one a core. Raises the first one's error."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max_workers=max(1, min(cores, len(commands)))) as pool:
        for _ in pool.map(run, commands):
            pass
