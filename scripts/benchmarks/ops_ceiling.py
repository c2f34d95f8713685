"""The CPU's ceiling: AdamW's streams, four read and three of them written in place, without arithmetic."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch

from dslaunch.engine.ops.toolchain import cxx, run

_SOURCE = Path(__file__).parent / "payload" / "traffic.cpp"


def traffic(streams: Sequence[torch.Tensor], *, prefetch: bool) -> Callable[[], object]:
    """A call that moves a step's bytes over `streams`: theta, gradient, m, v, all fp32 of one length."""
    function = _library().traffic
    pointers = [ctypes.c_void_p(stream.data_ptr()) for stream in streams]
    numel = ctypes.c_size_t(streams[0].numel())

    def move() -> None:
        assert streams  # kept alive
        function(*pointers, numel, torch.get_num_threads(), int(prefetch))

    return move


@cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/traffic.so"
        flags = ["-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-shared", "-fPIC"]
        run([*cxx(), *flags, str(_SOURCE), "-o", library])
        return ctypes.CDLL(library)
