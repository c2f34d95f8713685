"""What programs of this machine say of themselves."""

from __future__ import annotations

import subprocess

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
