"""What `import deepspeed` finds in the ranks: the host's own DeepSpeed, or dslaunch's engine under that name.

Only the host knows what its Python has installed, so its agent asks it, in the ranks' own environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from dslaunch.launcher.node_plan import NodePlan
from dslaunch.launcher.wire import EngineFound, Refused

_ASK_TIMEOUT_S = 60.0
_ASK = """
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
if origin and not (path and origin.startswith(os.path.realpath(path) + os.sep)):
    version = "of unknown version"
    for name in os.listdir(os.path.dirname(os.path.dirname(origin))):
        if name.startswith("deepspeed-") and name.endswith((".dist-info", ".egg-info")):
            version = name.split("-")[1].removesuffix(".dist").removesuffix(".egg")
print(path + "\\0" + version, end="")
"""
"""Prints where the bundled engine is, and the version of an installed DeepSpeed; "" for what is not there."""

_INSTALL = "install dslaunch for that Python there, or leave out --engine"


def choose(plan: NodePlan, environ: Mapping[str, str]) -> tuple[NodePlan, EngineFound] | Refused:
    """The plan with what its ranks need on PYTHONPATH, and what was found; `environ` is that of its ranks."""
    asked = subprocess.run(
        [sys.executable, "-c", _ASK],
        env=environ,
        cwd=plan.cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_ASK_TIMEOUT_S,
    )
    path, _, version = os.fsdecode(asked.stdout).rpartition("\0")
    if plan.engine == "installed" or (plan.engine == "auto" and version):
        if not version:
            return Refused(
                f"no DeepSpeed for {sys.executable}, which --engine installed asks for",
                "install deepspeed there, or let dslaunch's engine stand in: --engine bundled",
            )
        return plan, EngineFound("installed", version)
    if not path:
        if plan.engine == "auto":
            return plan, EngineFound("none", "")
        return Refused(f"no dslaunch for {sys.executable}, which --engine bundled asks for", _INSTALL)
    behind = environ.get("PYTHONPATH")
    python_path = f"{path}:{behind}" if behind else path
    return plan._replace(env={**plan.env, "PYTHONPATH": python_path}), EngineFound("bundled", "")
