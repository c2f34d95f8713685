"""Count this machine's accelerators without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LocalDevices:
    """`kind` is "cuda", "rocm" or "cpu"; `num_devices` is 0 for "cpu"."""

    kind: str
    num_devices: int


def count(root: Path = Path("/")) -> LocalDevices:
    """What the kernel offers under `root`: NVIDIA's device files, then AMD's compute topology."""
    nvidia = [path for path in _entries(root / "dev") if re.fullmatch(r"nvidia\d+", path.name)]
    if nvidia:
        return LocalDevices("cuda", len(nvidia))
    nodes = _entries(root / "sys/class/kfd/kfd/topology/nodes")
    amd = [node for node in nodes if _read(node / "gpu_id") not in ("", "0")]
    if amd:
        return LocalDevices("rocm", len(amd))
    return LocalDevices("cpu", 0)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _read(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""
