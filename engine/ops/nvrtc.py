"""Compile a CUDA source at run time with the NVRTC of torch's CUDA wheels: no nvcc and no headers needed."""

from __future__ import annotations

import ctypes
import glob
import sys
from functools import cache
from pathlib import Path

import torch

from dslaunch.engine.ops import artifacts
from dslaunch.engine.ops.toolchain import BuildError, NoCompilerError

_MAX_LOG = 4000


class Nvrtc:
    """A loaded libnvrtc."""

    def __init__(self, path: str) -> None:
        self._nvrtc = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def cubin(self, source: Path, arch: str) -> bytes:
        """Code of `source` for `arch`, such as "sm_90". Raises BuildError with the compiler's words."""
        program = ctypes.c_void_p()
        self._check(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.read_bytes(),
            source.name.encode(),
            0,
            None,
            None,
        )
        try:
            options = [f"--gpu-architecture={arch}", "--std=c++17", f"--include-path={source.parent}"]
            encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            if self._nvrtc.nvrtcCompileProgram(program, len(options), encoded) != 0:
                log = self._output(program, "ProgramLog").decode(errors="replace")[:_MAX_LOG]
                raise BuildError(
                    f"the kernels do not compile: {source.name} for {arch}, NVRTC {self.version}\n{log}"
                )
            return self._output(program, "CUBIN")
        finally:
            self._nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _output(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def _check(self, name: str, *arguments: object) -> None:
        if (code := getattr(self._nvrtc, name)(*arguments)) != 0:
            raise BuildError(f"{name} failed with code {code}")


@cache
def nvrtc() -> Nvrtc:
    """The one torch loads, else an installed one. Raises NoCompilerError where there is none."""
    major = (torch.version.cuda or "13").split(".")[0]
    candidates = [f"libnvrtc.so.{major}", "libnvrtc.so"]
    for folder in sys.path:
        candidates += sorted(glob.glob(f"{folder}/nvidia/*/lib/libnvrtc.so.{major}*"))
    for path in candidates:
        try:
            return Nvrtc(path)
        except OSError:
            continue
    raise NoCompilerError("neither nvcc nor NVRTC found\nhint: pip install nvidia-cuda-nvrtc")


def cubin(module: str, arch: str) -> bytes:
    """The code of csrc/`module`.cu, from the cache or compiled now and put there."""
    return built(module, arch).read_bytes()


def built(module: str, arch: str, folder: Path | None = None) -> Path:
    """The file of that code; in `folder`, compiled anew. Needs no GPU."""
    compiler = nvrtc()
    name = f"{module}-{arch}-{artifacts.source_key('nvrtc', compiler.version)}.cubin"
    if folder is None and (found := artifacts.find(name)):
        return found
    return artifacts.publish(name, compiler.cubin(artifacts.SOURCES / f"{module}.cu", arch), folder)
