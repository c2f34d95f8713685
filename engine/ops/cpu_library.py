"""The CPU kernels: csrc/cpu_*.cpp as one shared library behind ctypes, which lets go of the GIL during calls.

The team is OpenMP's, and torch's own where both use one libgomp. It belongs to the thread that calls, so step
from one thread that stays.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from pathlib import Path

import torch

from dslaunch.engine.ops import ahead
from dslaunch.engine.ops.build import build_cpu
from dslaunch.engine.ops.kernel_arguments import ENTRY_NUM_WORDS, CpuCall
from dslaunch.engine.ops.shard import DTYPE_CODES, Batch, Control, Rule, kernel_name
from dslaunch.engine.ops.toolchain import BuildError

_SERIAL_NUMEL = 1 << 14  # below, waking a team takes longer than the step


class CpuLibrary:
    """A loaded library."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"the kernels do not load: {error}") from error
        self._library.dslaunch_instruction_set.restype = ctypes.c_char_p

    @classmethod
    def open(cls) -> CpuLibrary:
        """The one of these sources, built where nobody has yet. Raises BuildError."""
        ahead.finish()
        return cls(build_cpu())

    @property
    def instruction_set(self) -> str:
        """baseline, avx2, avx512 or avx512bf16."""
        return str(self._library.dslaunch_instruction_set().decode())

    def use(self, instruction_set: str) -> bool:
        """Choose one (or "best"), for tests; False where this processor has it not."""
        return bool(self._library.dslaunch_use(instruction_set.encode()))

    def step(self, rule: Rule, batch: Batch, control: Control) -> None:
        if control.found_inf is not None and control.found_inf.item():
            return
        scalars = rule.scalars(batch.low_states)
        scale = 1.0 if control.grad_scale is None else float(control.grad_scale)
        call, entries = _call(batch, scale, control.num_threads)
        call.scalars = ctypes.addressof(scalars)
        if getattr(self._library, f"dslaunch_{kernel_name(rule, batch)}")(ctypes.byref(call)) != 0:
            raise MemoryError("no memory for the partial sums of an optimizer step")
        del entries  # the call's pointer does not keep it

    def sum_of_squares(self, grads: Sequence[torch.Tensor]) -> torch.Tensor:
        words: list[int] = []
        for grad in grads:
            words += (0, 0, 0, grad.data_ptr(), 0, grad.numel(), 0, 0)
        call, entries = _call(Batch(words, grads[0].dtype, None, grads[0].device), 1.0)
        total = ctypes.c_double()
        if self._library.dslaunch_sum_of_squares(ctypes.byref(call), ctypes.byref(total)) != 0:
            raise MemoryError("no memory for the partial sums of a norm")
        del entries
        return torch.tensor(total.value, dtype=torch.float64)


def _call(
    batch: Batch, scale: float, num_threads: int | None = None
) -> tuple[CpuCall, ctypes.Array[ctypes.c_int64]]:
    words = batch.words
    kind = ctypes.c_int64 * len(words)
    entries = kind.from_buffer(words) if isinstance(words, array) else kind(*words)
    numel = sum(words[5::ENTRY_NUM_WORDS])
    call = CpuCall(
        entries=ctypes.addressof(entries),
        num_entries=len(words) // ENTRY_NUM_WORDS,
        grad_scale=scale,
        grad_dtype=DTYPE_CODES[batch.grad_dtype],
        out_dtype=batch.out_code,
        num_threads=(num_threads or torch.get_num_threads()) if numel > _SERIAL_NUMEL else 1,
    )
    return call, entries
