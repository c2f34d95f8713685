"""Steps on exactly sized memory, so that a byte too far is seen. Runs with the sanitizers preloaded.

It has ctypes alone: under AddressSanitizer torch takes half a minute to load.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys

from dslaunch.engine.ops.build import build_cpu
from dslaunch.engine.ops.kernel_arguments import CpuCall

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

SIZES = (0, 1, 7, 15, 16, 63, 64, 65, 4095, 4097, 20011)
KERNELS = {
    "adamw": 7,
    "adamw_bf16": 8,
    "lion": 4,
    "adagrad": 3,
    "sgd": 2,
    "sgd_momentum": 6,
    "lamb": 8,
}  # numbers of scalars
BYTES = {0: 0, 1: 4, 2: 2, 3: 2, 4: 2}
SPLIT = 4  # masters have 2 bytes beside the parameter


def allocate(numel: int, item_bytes: int, offset: int) -> tuple[int, int]:
    """A block of malloc's, and the place in it that ends with the block."""
    block = libc.malloc((numel + offset) * item_bytes)
    place = block + offset * item_bytes
    if item_bytes == 4:
        content = struct.pack(f"{numel}f", *(math.sin(i) for i in range(numel)))
    else:
        content = struct.pack(f"{numel}H", *(0x3C00 + i % 999 for i in range(numel)))
    ctypes.memmove(place, content, len(content))
    return block, place


def main(library: ctypes.CDLL) -> None:
    for instructions in (b"baseline", b"avx2", b"avx512", b"avx512bf16"):
        if not library.dslaunch_use(instructions):
            continue
        for grad in (1, 2, 3):
            for out in (0, 2, 3, SPLIT):
                for offset in (0, 1):
                    run(library, grad, out, offset)


def run(library: ctypes.CDLL, grad: int, out: int, offset: int) -> None:
    blocks, words, halves = [], [], []  # halves: with states of 2 bytes, which end with their blocks
    for numel in SIZES:
        parts = [
            allocate(numel, item, offset)
            for item in (2 if out == SPLIT else 4, 4, 4, BYTES[grad], BYTES[out] or 2)
        ]
        blocks += [block for block, _ in parts]
        pointers = [place for _, place in parts]
        words += [*pointers[:4], pointers[4] if out else 0, numel, 0, numel]
        halves += [pointers[0], *(place + 2 * numel for place in pointers[1:3]), *words[-5:]]
    for kernel, num_scalars in KERNELS.items():
        if kernel == "lamb" and out == SPLIT:
            continue
        entries = (ctypes.c_int64 * len(words))(*(halves if kernel == "adamw_bf16" else words))
        scalars = (ctypes.c_float * num_scalars)(*([0.1] * num_scalars))
        call = CpuCall(
            entries=ctypes.addressof(entries),
            scalars=ctypes.addressof(scalars),
            num_entries=len(SIZES),
            grad_scale=0.5,
            grad_dtype=grad,
            out_dtype=out,
            num_threads=2,
        )
        assert getattr(library, f"dslaunch_{kernel}")(ctypes.byref(call)) == 0
    call.out_dtype = 0
    total = ctypes.c_double()
    assert library.dslaunch_sum_of_squares(ctypes.byref(call), ctypes.byref(total)) == 0
    for block in blocks:
        libc.free(block)


if __name__ == "__main__":
    main(ctypes.CDLL(str(build_cpu(flags=tuple(sys.argv[1:])))))
    print("clean")
