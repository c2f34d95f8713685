"""What torch says of itself, asked in a process of its own: a broken torch is a fact to tell, not an end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

_TIMEOUT_S = 60.0
_MARK = "dslaunch-torch:"
"""In front of the answer: importing torch may print warnings."""

_CODE = f"""
import json, time
started_at = time.monotonic()
import torch
import_s = time.monotonic() - started_at
try:
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
except Exception:
    nccl = None
print({_MARK!r} + json.dumps({{
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "nccl": nccl,
    "num_devices": torch.accelerator.device_count(), "import_s": round(import_s, 3),
}}))
"""


@dataclass(frozen=True, slots=True)
class Torch:
    """`cuda`, `hip` and `nccl` are the versions it was built with. Where `error` is not "", only `version`
    may be known, from the package's metadata.
    """

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    nccl: str | None = None
    num_devices: int = 0
    import_s: float = 0.0
    error: str = ""


def probe_torch(timeout_s: float = _TIMEOUT_S) -> Torch:
    """Import torch with this interpreter and the user's environment, as a rank would."""
    try:
        result = subprocess.run(
            [sys.executable, "-c", _CODE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return Torch(_installed(), error=f"importing it took longer than {timeout_s:g} s")
    answers = [line for line in result.stdout.splitlines() if line.startswith(_MARK)]
    if result.returncode == 0 and answers:
        return Torch(**json.loads(answers[-1].removeprefix(_MARK)))
    said = result.stderr.strip().splitlines()
    how = (
        f"killed by signal {-result.returncode}"
        if result.returncode < 0
        else f"exit code {result.returncode}"
    )
    return Torch(_installed(), error=said[-1].strip() if said and result.returncode > 0 else how)


def _installed() -> str | None:
    try:
        return version("torch")
    except PackageNotFoundError:
        return None
