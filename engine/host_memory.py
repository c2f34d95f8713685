"""Memory of the host for what a GPU does not keep: in huge pages and, where GPUs copy, pinned.

Streaming through 4 KiB pages costs a third to two thirds of the bandwidth, most in virtual machines. torch's
own pinned allocator rounds up to powers of two, so pinned memory is registered here after it is mapped.
"""

from __future__ import annotations

import mmap
import os

import torch

from dslaunch.engine.log import logger

HUGE_PAGE_BYTES = 1 << 21


def host_empty(numel: int, dtype: torch.dtype) -> torch.Tensor:
    """[numel] zeros or garbage, in huge pages where the kernel gives them."""
    num_bytes = numel * dtype.itemsize
    if num_bytes < HUGE_PAGE_BYTES:
        return torch.empty(numel, dtype=dtype)
    return _view(_mapped(num_bytes), numel, dtype)


def pinned_empty(numel: int, dtype: torch.dtype) -> torch.Tensor:
    """[numel] zeros, pinned until the last view is gone; on machines without CUDA, `host_empty`.

    Where the system refuses (a limit on locked memory) a warning says so, and copies are slower.
    """
    if numel == 0 or not torch.cuda.is_available():
        return host_empty(numel, dtype)
    mapping = _mapped(numel * dtype.itemsize)
    memory = _view(mapping, numel, dtype).zero_()  # its pages exist before they are pinned
    if code := mapping.pin(memory.data_ptr(), numel * dtype.itemsize):
        logger.warning(
            "%d MB of host memory cannot be pinned (CUDA error %d): copies from and to the GPU take several "
            "times as long; see ulimit -l, or set pin_memory to false",
            numel * dtype.itemsize >> 20,
            code,
        )
    return memory


class _Mapping(mmap.mmap):
    """Anonymous memory; what is pinned of it is let go before it is unmapped."""

    _pinned: int | None = None

    def pin(self, address: int, num_bytes: int) -> int:
        """0, or the CUDA runtime's error."""
        # A child that copied these pages on write would leave the GPU with the wrong ones.
        self.madvise(mmap.MADV_DONTFORK)
        code = int(torch.cuda.cudart().cudaHostRegister(address, num_bytes, 0))  # type: ignore[no-untyped-call]
        if code == 0:
            self._pinned, self._process = address, os.getpid()
            self._unregister = torch.cuda.cudart().cudaHostUnregister  # type: ignore[no-untyped-call]
        return code

    def __del__(self) -> None:
        if self._pinned is not None and self._process == os.getpid():
            self._unregister(self._pinned)


def _mapped(num_bytes: int) -> _Mapping:
    mapping = _Mapping(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def _view(mapping: _Mapping, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """From the first huge page's start. The tensor's storage keeps the mapping."""
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    return whole[start : start + numel * dtype.itemsize].view(dtype)
