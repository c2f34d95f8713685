"""Versions of what ranks would import, without importing it."""

from __future__ import annotations

import contextlib
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution

from dslaunch.launcher.survey.records import Software

_PACKAGES = ("torch", "dslaunch")
_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")


def software() -> Software:
    """What this interpreter would find."""
    packages = {name: version for name in _PACKAGES if (version := _version(name))}
    nccl = next((version for name in _NCCL_PACKAGES if (version := _version(name))), "")
    if nccl:
        packages["nccl"] = nccl
    return Software(platform.python_version(), sys.executable, packages, _cuda(), _driver())


def _version(package: str) -> str:
    try:
        return distribution(package).version
    except PackageNotFoundError:
        return ""


def _cuda() -> str:
    """The toolkit that torch was built with, out of the file in which it says so."""
    with contextlib.suppress(PackageNotFoundError, OSError):
        text = str(distribution("torch").locate_file("torch/version.py"))
        with open(text, encoding="utf-8") as file:
            found = re.search(r"^(?:cuda|hip)\b.*?=\s*['\"]([\d.]+)", file.read(), re.MULTILINE)
            return found[1] if found else ""
    return ""


def _driver() -> str:
    """NVIDIA's, as its kernel module tells; "" where none is loaded."""
    with contextlib.suppress(OSError), open("/proc/driver/nvidia/version", errors="replace") as file:
        found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", file.read())
        return found[1] if found else ""
    return ""
