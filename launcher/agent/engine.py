"""What `import deepspeed` finds in the ranks: the host's own DeepSpeed, or dslaunch's engine under that name.

Only the host knows what its Python has installed, so its agent asks it, in the ranks' own environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from dslaunch.launcher.agent.process import environment
from dslaunch.launcher.node_plan import NodePlan
from dslaunch.launcher.wire import EngineFound, Refused

_ASK_TIMEOUT_S = 60.0
_QUESTION = """
import os, sys
from importlib.util import find_spec
sys.path.pop(0)
spec = find_spec("dslaunch")
path = os.path.join(spec.submodule_search_locations[0], "compat", "path") if spec else ""
if not os.path.isdir(path):
    path = ""
spec = find_spec("deepspeed")
origin = os.path.realpath(spec.origin) if spec and spec.origin else ""
version = ""
if origin:
    version = "of unknown version"
    for name in os.listdir(os.path.dirname(os.path.dirname(origin))):
        if name.startswith("deepspeed-") and name.endswith((".dist-info", ".egg-info")):
            version = name.split("-")[1].removesuffix(".dist").removesuffix(".egg")
if version.endswith("+dslaunch"):
    version = ""  # the bundled one, on PYTHONPATH already
print(path + "\\0" + version, end="")
"""
"""Prints both answers of `_ask`."""


def choose(plan: NodePlan) -> tuple[NodePlan, EngineFound | Refused]:
    """The plan with what its ranks need on PYTHONPATH, and what they will find; or why they cannot."""
    environ = environment(plan, plan.ranks[0], (), None)
    try:
        path, version = _ask(environ, plan.cwd)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return plan, Refused(f"{sys.executable} cannot be asked for DeepSpeed: {error}", "check --python")
    if version and plan.engine != "bundled":
        return plan, EngineFound("installed", version)
    if plan.engine == "installed":
        return plan, Refused(
            f"no DeepSpeed for {sys.executable}, which --engine installed asks for",
            "install deepspeed there, or let dslaunch's engine stand in: --engine bundled",
        )
    if path:
        behind = environ.get("PYTHONPATH")
        python_path = f"{path}:{behind}" if behind else path
        return plan._replace(env={**plan.env, "PYTHONPATH": python_path}), EngineFound("bundled", "")
    if plan.engine == "auto":
        return plan, EngineFound("none", "")
    return plan, Refused(
        f"no dslaunch for {sys.executable}, which --engine bundled asks for",
        "install dslaunch for that Python there, or leave out --engine",
    )


def _ask(environ: Mapping[str, str], cwd: str) -> tuple[str, str]:
    """The folder of the bundled engine, and the version of an installed DeepSpeed; "" for none."""
    asked = subprocess.run(
        [sys.executable, "-c", _QUESTION],
        env=environ,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_ASK_TIMEOUT_S,
    )
    path, _, version = os.fsdecode(asked.stdout).rpartition("\0")
    return path, version
