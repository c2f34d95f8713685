"""`dslaunchctl config`: the engine's linter, run as a program: the launcher does not import the engine."""

from __future__ import annotations

import subprocess
import sys


def lint_config(file: str, world_size: str | None, params: str | None, *, auto: bool, as_json: bool) -> int:
    """Run the linter on this process's own stdout and stderr; its exit code."""
    argv = [sys.executable, "-m", "dslaunch.engine.lint"]
    argv += [] if world_size is None else ["--world_size", world_size]
    argv += [] if params is None else ["--params", params]
    argv += ["--auto"] * auto + ["--json"] * as_json
    return subprocess.run([*argv, "--", file], check=False).returncode
