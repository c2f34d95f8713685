"""NVIDIA's driver and GPUs, by its library where nvidia-ml-py is installed, else by its tool."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from dslaunch.launcher.programs import output_of

_QUERY = ("--query-gpu=driver_version,index,memory.total,name", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Gpu:
    """`index` is the driver's; visible-devices variables do not matter."""

    index: int
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Nvidia:
    """`driver` is None where none is loaded."""

    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()


def find_nvidia() -> Nvidia:
    """What there is; nothing that is broken or missing raises."""
    by_tool = ("nvidia-smi", *_QUERY)
    return _by_library() or parse_query(output_of(*by_tool)) or Nvidia(_driver_of_kernel())


def _by_library() -> Nvidia | None:
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            gpus.append(Gpu(index, _text(pynvml.nvmlDeviceGetName(handle)), memory_bytes))
        return Nvidia(_text(pynvml.nvmlSystemGetDriverVersion()), tuple(gpus))
    except pynvml.NVMLError:
        return None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    """Old versions of the binding give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def parse_query(text: str) -> Nvidia | None:
    """What `nvidia-smi --query-gpu=...` printed, memory in MiB; None where it holds no GPU."""
    rows = [re.split(r",\s*", line.strip(), maxsplit=3) for line in text.splitlines()]
    whole = [row for row in rows if len(row) == 4 and row[1].isdecimal()]
    if not whole:
        return None
    gpus = tuple(
        Gpu(int(index), name, int(memory) << 20 if memory.isdecimal() else 0)
        for _, index, memory, name in whole
    )
    return Nvidia(whole[0][0], gpus)


def _driver_of_kernel() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)
    return match[1] if match else None
