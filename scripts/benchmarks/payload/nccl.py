"""NCCL itself, without torch in between: what nccl-tests would measure.

Only what the bandwidth benchmark needs of nccl.h (NCCL 2): a communicator, all-gather and reduce-scatter.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import torch
import torch.distributed as dist

_BFLOAT16, _SUM = 9, 0  # ncclDataType_t, ncclRedOp_t


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


class Nccl:
    """A communicator over all ranks, on the current device. Every call is collective."""

    def __init__(self) -> None:
        """Raises OSError where the library is not found, RuntimeError where NCCL refuses."""
        self._library = ctypes.CDLL(_path())
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        for name in ("ncclAllGather", "ncclReduceScatter"):
            getattr(self._library, name).argtypes = [
                *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
                *([ctypes.c_int] if name == "ncclReduceScatter" else []),
                *(ctypes.c_void_p, ctypes.c_void_p),
            ]
        unique = _UniqueId()
        if dist.get_rank() == 0:
            self._check(self._library.ncclGetUniqueId(ctypes.byref(unique)))
        shared: list[object] = [bytes(unique)]
        dist.broadcast_object_list(shared, src=0)
        assert isinstance(shared[0], bytes)
        unique = _UniqueId.from_buffer_copy(shared[0])
        self._communicator = ctypes.c_void_p()
        self._check(
            self._library.ncclCommInitRank(
                ctypes.byref(self._communicator), dist.get_world_size(), unique, dist.get_rank()
            )
        )

    def all_gather(self, whole: torch.Tensor, shard: torch.Tensor) -> None:
        """Fill `whole` [P] bf16 from every rank's `shard` [S] on the current stream."""
        self._check(
            self._library.ncclAllGather(
                *(shard.data_ptr(), whole.data_ptr(), shard.numel(), _BFLOAT16, self._communicator, _stream())
            )
        )

    def reduce_scatter(self, whole: torch.Tensor, shard: torch.Tensor) -> None:
        """Sum `whole` [P] bf16 over ranks into `shard` [S] on the current stream."""
        self._check(
            self._library.ncclReduceScatter(
                *(whole.data_ptr(), shard.data_ptr(), shard.numel(), _BFLOAT16, _SUM),
                *(self._communicator, _stream()),
            )
        )

    def close(self) -> None:
        torch.cuda.synchronize()
        self._check(self._library.ncclCommDestroy(self._communicator))

    def _check(self, result: int) -> None:
        if result:
            raise RuntimeError(f"NCCL says: {self._library.ncclGetErrorString(result).decode()}")


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def _path() -> str:
    """The library that torch has loaded: the wheel's, or the system's."""
    spec = importlib.util.find_spec("nvidia.nccl")
    for folder in spec.submodule_search_locations or [] if spec is not None else []:
        for path in Path(folder, "lib").glob("libnccl.so*"):
            return str(path)
    return "libnccl.so.2"
