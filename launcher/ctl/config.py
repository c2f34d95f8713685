"""`dslaunchctl config` and `build`: the engine's own programs: the launcher does not import the engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def lint_config(file: str, world_size: str | None, params: str | None, *, auto: bool, as_json: bool) -> int:
    """Run the linter on this process's own stdout and stderr; its exit code."""
    argv = [sys.executable, "-m", "dslaunch.engine.lint"]
    argv += [] if world_size is None else ["--world_size", world_size]
    argv += [] if params is None else ["--params", params]
    argv += ["--auto"] * auto + ["--json"] * as_json
    return subprocess.run([*argv, "--", file], check=False).returncode


def build_kernels(folder: str | None, architectures: Sequence[str]) -> int:
    """Run the build on this process's own stdout and stderr; its exit code."""
    argv = [sys.executable, "-m", "dslaunch.engine.ops.build"]
    argv += [f"--arch={arch}" for arch in architectures]
    argv += [] if folder is None else ["--", folder]
    return subprocess.run(argv, check=False).returncode
