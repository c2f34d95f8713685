"""Programs of this machine, and what they say of themselves."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

_TIMEOUT_S = 10.0


def output_of(*argv: str) -> str:
    """What a program prints; "" where it is missing, fails or hangs."""
    try:
        result = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout if result.returncode == 0 else ""


def compiler_versions() -> Mapping[str, str | None]:
    """g++ and nvcc; None where there is none that works."""
    first_line = output_of("g++", "--version").partition("\n")[0].strip()
    release = re.search(r"release (\S+),", output_of("nvcc", "--version"))
    return {"g++": first_line or None, "nvcc": release[1] if release else None}
