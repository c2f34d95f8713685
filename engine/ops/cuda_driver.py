"""The few calls of the CUDA driver API that kernels need, through ctypes: nothing is built against CUDA."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from dslaunch.engine.ops.toolchain import BuildError

THREADS = 256  # kThreads of csrc/cuda_launch.h

Argument = ctypes.Structure | ctypes.c_void_p | ctypes.c_int64


class CudaError(BuildError):
    """The driver refused a call."""


class Driver:
    """libcuda, and the primary context of each device, which torch uses too."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise BuildError(f"no CUDA driver: {error}") from error
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._check("cuInit", 0)

    def load(self, image: bytes, device: int) -> ctypes.c_void_p:
        """A module from a fatbin or cubin. Raises CudaError, where no code in it runs on this device say."""
        module = ctypes.c_void_p()
        with self._current(device):
            self._check("cuModuleLoadData", ctypes.byref(module), image)
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """The kernel of that name."""
        function = ctypes.c_void_p()
        self._check("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def launch(
        self, function: ctypes.c_void_p, shape: tuple[int, int], device: int, arguments: Sequence[Argument]
    ) -> None:
        """`shape` (blocks, threads of each) on the current stream of `device`; arguments are copied."""
        blocks, threads = shape
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
        with self._current(device):
            self._check("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)

    def _current(self, device: int) -> _Current:
        if device not in self._contexts:
            handle, context = ctypes.c_int(), ctypes.c_void_p()
            # CUDA_VISIBLE_DEVICES holds for the driver too, so it counts devices as torch does.
            self._check("cuDeviceGet", ctypes.byref(handle), device)
            self._check("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
            self._contexts[device] = context
        return _Current(self, self._contexts[device])

    def _check(self, name: str, *arguments: object) -> None:
        if (code := getattr(self._cuda, name)(*arguments)) != 0:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


class _Current:
    """Makes a context the thread's current one for a while, where it is not already."""

    def __init__(self, driver: Driver, context: ctypes.c_void_p) -> None:
        self._driver, self._context, self._pushed = driver, context, False

    def __enter__(self) -> None:
        now = ctypes.c_void_p()
        self._driver._check("cuCtxGetCurrent", ctypes.byref(now))
        if now.value != self._context.value:
            self._driver._check("cuCtxPushCurrent_v2", self._context)
            self._pushed = True

    def __exit__(self, *_: object) -> None:
        if self._pushed:
            self._driver._check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@cache
def driver() -> Driver:
    """The one of this process. Raises BuildError where there is none."""
    return Driver()
