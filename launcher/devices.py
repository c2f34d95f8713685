"""Count this machine's accelerators without torch: by the driver's own library, device files and tools."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dslaunch.launcher.accelerators import ACCELERATORS
from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.programs import output_of

_HERE = Path("/")
_INTEL, _INTEL_DRIVERS = "0x8086", ("i915", "xe")
_INTEGRATED = re.compile(r"0000:00:02\.0")  # where Intel's processors have their own graphics


@dataclass(frozen=True, slots=True)
class LocalDevices:
    """`kind` is a key of ACCELERATORS; `num_devices` is 0 for "cpu"."""

    kind: str
    num_devices: int


def count(root: Path = _HERE, accelerator: str = "auto") -> LocalDevices:
    """The devices of this machine, visible-devices variables aside.

    "auto" is the first kind of which there is a device, else "cpu". A kind that is asked for is what comes
    back, with 0 devices where there are none, or where nothing is known of how to count them (sdaa, supa).
    Under another `root` only files are looked at. Raises UsageError for an unknown accelerator.
    """
    if accelerator == "auto":
        for kind, count_devices in _COUNTERS.items():
            if num_devices := count_devices(root):
                return LocalDevices(kind, num_devices)
        return LocalDevices("cpu", 0)
    if accelerator not in ACCELERATORS:
        raise UsageError(f"unknown accelerator {accelerator!r}", f"use auto, {', '.join(ACCELERATORS)}")
    count_devices = _COUNTERS.get(accelerator, lambda _: 0)
    return LocalDevices(accelerator, count_devices(root))


# -- NVIDIA


def _cuda(root: Path) -> int:
    """NVML sees what containers and cgroups leave; device files may stand there without a right to them."""
    if root == _HERE and (num_devices := _nvml_count()):
        return num_devices
    if num_devices := _matching(root / "dev", r"nvidia\d+"):
        return num_devices
    # Without device files a tool may still know devices, as under WSL.
    return count_listed_gpus(output_of("nvidia-smi", "-L")) if root == _HERE else 0


def _nvml_count() -> int:
    """0 also where nvidia-ml-py is not installed, or its driver not loaded."""
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def count_listed_gpus(listing: str) -> int:
    """The GPUs in what `nvidia-smi -L` prints; the indented MIG instances are part of theirs."""
    return len(re.findall(r"^GPU \d+:", listing, re.MULTILINE))


# -- AMD


def _rocm(root: Path) -> int:
    """The compute nodes of the kernel's driver that are GPUs, and whose render node this container has.

    https://docs.kernel.org/gpu/amdgpu: processors have gpu_id 0.
    """
    num_devices = 0
    for node in _entries(root / "sys/class/kfd/kfd/topology/nodes"):
        minor = re.search(r"^drm_render_minor (\d+)$", _read(node / "properties"), re.MULTILINE)
        is_here = minor is None or minor[1] == "0" or (root / f"dev/dri/renderD{minor[1]}").exists()
        num_devices += _read(node / "gpu_id") not in ("", "0") and is_here
    return num_devices


# -- Intel


def _xpu(root: Path) -> int:
    """Discrete GPUs, each tile of one being a device unless ZE_FLAT_DEVICE_HIERARCHY is COMPOSITE."""
    num_devices = 0
    for node in _entries(root / "sys/class/drm"):
        if not re.fullmatch(r"renderD\d+", node.name) or not (root / "dev/dri" / node.name).exists():
            continue
        device = node / "device"
        is_ours = _read(device / "vendor") == _INTEL and _link_name(device / "driver") in _INTEL_DRIVERS
        if is_ours and not _INTEGRATED.fullmatch(_link_name(device)):
            num_devices += _num_tiles(device)
    return num_devices


def _num_tiles(device: Path) -> int:
    """xe has tile0, tile1, ... below the device, i915 a gt for each tile below its card."""
    if os.environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "COMPOSITE":
        return 1
    cards = [card for card in _entries(device / "drm") if re.fullmatch(r"card\d+", card.name)]
    return max(1, _matching(device, r"tile\d+"), *(_matching(card / "gt", r"gt\d+") for card in cards))


# -- others


def _npu(root: Path) -> int:
    return _matching(root / "dev", r"davinci\d+")


def _hpu(root: Path) -> int:
    """Gaudi shares the kernel's accel class with others, such as the NPUs of laptops."""
    accels = [node for node in _entries(root / "sys/class/accel") if re.fullmatch(r"accel\d+", node.name)]
    if accels:
        return sum(_link_name(node / "device/driver") == "habanalabs" for node in accels)
    return _matching(root / "dev/accel", r"accel\d+") or _matching(root / "dev", r"hl\d+")


def _mlu(root: Path) -> int:
    return _matching(root / "dev", r"cambricon_dev\d+")


_COUNTERS: Mapping[str, Callable[[Path], int]] = {
    "cuda": _cuda,
    "rocm": _rocm,
    "xpu": _xpu,
    "npu": _npu,
    "hpu": _hpu,
    "mlu": _mlu,
}
"""In the order they are looked for."""


# -- files and tools: what is missing or closed to us is not there


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _matching(folder: Path, pattern: str) -> int:
    return sum(re.fullmatch(pattern, entry.name) is not None for entry in _entries(folder))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _link_name(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""
