"""Safetensors files written and read piece by piece: no more than one block in memory beside the tensors.

The format (https://huggingface.co/docs/safetensors) is 8 bytes of header length, a JSON header, the tensors'
bytes one after another. The package's own functions want whole tensors on the CPU, and map whole files.
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch

from dslaunch.engine.checkpoint_files import FileSum
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.ops.crc32 import crc32

BLOCK_BYTES = 1 << 22  # large enough for full bandwidth, small beside any shard

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def can_hold(tensor: torch.Tensor) -> bool:
    """Whether a file can: dense, and of a dtype it knows."""
    return tensor.layout == torch.strided and tensor.dtype in _NAMES and not tensor.is_quantized


def dtype_named(name: str) -> torch.dtype:
    """The dtype that manifests call `name`, as "bfloat16"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


@dataclass(frozen=True, slots=True)
class Deferred:
    """A tensor to be written that is made only then, in pieces that follow one another."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[torch.Tensor]]
    is_cuda: bool = False

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor | Deferred]) -> FileSum:
    """Write a safetensors file and force it to disk; returns its size and checksum."""
    header: dict[str, object] = {}
    at = 0
    for name, tensor in tensors.items():
        num_bytes = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + num_bytes],
        }
        at += num_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    checksum, num_bytes = 0, 0
    with open(path, "wb", buffering=0) as file:
        for block in _blocks(len(text).to_bytes(8, "little") + text, tensors):
            checksum = crc32(block, checksum)
            written = 0
            while written < len(block):
                written += file.write(block[written:])
            num_bytes += len(block)
        os.fsync(file.fileno())
    return FileSum(num_bytes, checksum)


def _blocks(start: bytes, tensors: Mapping[str, torch.Tensor | Deferred]) -> Iterator[memoryview]:
    yield memoryview(start)
    staging: torch.Tensor | None = None
    for piece in chain.from_iterable(pieces_of(tensor) for tensor in tensors.values()):
        flat = as_bytes(piece)
        if not flat.is_cuda:
            whole = _memory(flat)
            for at in range(0, len(whole), BLOCK_BYTES):
                yield whole[at : at + BLOCK_BYTES]
            continue
        if staging is None:
            staging = torch.empty(BLOCK_BYTES, dtype=torch.uint8, pin_memory=True)
        for block in torch.split(flat, BLOCK_BYTES):
            host = staging[: len(block)]
            host.copy_(block)
            yield _memory(host)


def pieces_of(tensor: torch.Tensor | Deferred) -> Iterable[torch.Tensor]:
    """What is to be written, made piece by piece where it is deferred."""
    return tensor.pieces() if isinstance(tensor, Deferred) else (tensor.detach(),)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, 1-D uint8, sharing its memory if it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _memory(data: torch.Tensor) -> memoryview:
    """The memory of a tensor of bytes on the CPU."""
    return memoryview(cast(Any, data.numpy()))


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor in a file; `start` in bytes from the file's beginning."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


class TensorFile:
    """An open safetensors file of which slices are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._descriptor)  # at the latest with the reader
        self.entries = self._entries()

    def _entries(self) -> dict[str, TensorEntry]:
        size = int.from_bytes(os.pread(self._descriptor, 8, 0), "little")
        header = cast("dict[str, dict[str, object]]", json.loads(os.pread(self._descriptor, size, 8)))
        return {
            name: TensorEntry(
                _DTYPES[cast(str, entry["dtype"])],
                tuple(cast("list[int]", entry["shape"])),
                8 + size + cast("list[int]", entry["data_offsets"])[0],
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }

    def read(self, name: str, start: int, out: torch.Tensor) -> None:
        """Fill `out` (1-D, any device and dtype) with elements from `start` on of a flattened tensor."""
        entry = self.entries[name]
        at = entry.start + start * entry.dtype.itemsize
        if out.dtype == entry.dtype and not out.is_cuda and out.is_contiguous():
            self._fill(_memory(as_bytes(out)), at)
            return
        step = BLOCK_BYTES // entry.dtype.itemsize
        staging = torch.empty(min(step, out.numel()), dtype=entry.dtype, pin_memory=out.is_cuda)
        for block in torch.split(out, step):
            host = staging[: block.numel()]
            self._fill(_memory(as_bytes(host)), at)
            block.copy_(host)
            at += host.numel() * host.element_size()

    def _fill(self, into: memoryview, at: int) -> None:
        done = 0
        while done < len(into):
            num_bytes = os.preadv(self._descriptor, [into[done:]], at + done)
            if not num_bytes:
                raise CheckpointError(
                    f"checkpoint file {self._path} ends {len(into) - done} bytes too early",
                    "load another tag",
                )
            done += num_bytes
