"""The CUDA kernels of a device, loaded when first asked for: from a fatbin, else compiled by NVRTC."""

from __future__ import annotations

import ctypes

import torch

from dslaunch.engine.ops import artifacts, nvrtc
from dslaunch.engine.ops.build import build_cuda, cuda_name
from dslaunch.engine.ops.cuda_driver import CudaError, driver
from dslaunch.engine.ops.toolchain import NoCompilerError, nvcc

_functions: dict[tuple[str, str, int], ctypes.c_void_p] = {}
_modules: dict[tuple[str, int], ctypes.c_void_p] = {}


def function(module: str, name: str, device: int) -> ctypes.c_void_p:
    """The kernel `name` of csrc/`module`.cu on `device`. Raises BuildError."""
    if (found := _functions.get((module, name, device))) is None:
        if (module, device) not in _modules:
            _modules[module, device] = _load(module, device)
        found = driver().function(_modules[module, device], name)
        _functions[module, name, device] = found
    return found


def _load(module: str, device: int) -> ctypes.c_void_p:
    """From a fatbin; without one, or one that fits `device`, by NVRTC; without that, by nvcc."""
    driver()  # says so where there is none, before anything is built
    fatbin = artifacts.find(cuda_name(module))
    if fatbin is None and nvcc() is not None and not _has_nvrtc():
        fatbin = build_cuda(module)
    if fatbin is not None:
        try:
            return driver().load(fatbin.read_bytes(), device)
        except CudaError:
            if not _has_nvrtc():
                raise
    major, minor = torch.cuda.get_device_capability(device)
    return driver().load(nvrtc.cubin(module, f"sm_{major}{minor}"), device)


def _has_nvrtc() -> bool:
    try:
        nvrtc.nvrtc()
    except NoCompilerError:
        return False
    return True
