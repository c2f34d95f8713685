"""The C values that kernels take, laid out as in csrc/entry.h, csrc/cpu_call.h and csrc/cuda_launch.h."""

from __future__ import annotations

import ctypes


class Entry(ctypes.Structure):
    """One tensor, or one flat shard."""

    _fields_ = (
        ("master", ctypes.c_void_p),
        ("state1", ctypes.c_void_p),
        ("state2", ctypes.c_void_p),
        ("grad", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("numel", ctypes.c_int64),
        ("first_block", ctypes.c_int64),
        ("start", ctypes.c_uint32),
        ("stream", ctypes.c_uint32),
    )


ENTRY_NUM_WORDS = ctypes.sizeof(Entry) // 8


class CpuCall(ctypes.Structure):
    """All that a CPU kernel needs."""

    _fields_ = (
        ("entries", ctypes.c_void_p),
        ("scalars", ctypes.c_void_p),
        ("num_entries", ctypes.c_int64),
        ("num_blocks", ctypes.c_int64),
        ("partials", ctypes.c_void_p),
        ("grad_scale", ctypes.c_float),
        ("grad_dtype", ctypes.c_int32),
        ("out_dtype", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    )


class Launch(ctypes.Structure):
    """All that a CUDA kernel needs beside its scalars."""

    _fields_ = (
        ("flat", Entry),
        ("table", ctypes.c_void_p),
        ("tensor_of_block", ctypes.c_void_p),
        ("grad_scale", ctypes.c_void_p),
        ("found_inf", ctypes.c_void_p),
        ("partials", ctypes.c_void_p),
    )
