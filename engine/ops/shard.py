"""What an optimizer step reads and writes, and what a rule for it is. `S` elements of a tensor or shard."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from dslaunch.engine.ops.remainder import REST_DTYPE

_STATE_DTYPES: tuple[set[torch.dtype], ...] = (set(), {torch.float32}, {torch.bfloat16})
GRAD_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PARAM_DTYPES = (torch.bfloat16, torch.float16)
DTYPE_CODES = {None: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}  # DType of csrc/entry.h
_SPLIT_CODE = 4


@dataclass(frozen=True, slots=True)
class Shard:
    """One tensor, or one flat shard: [S], or of any one shape; all on one device."""

    master: torch.Tensor  # fp32, updated; or int16: what it has beyond its bf16 `param` (see remainder.py)
    states: tuple[torch.Tensor, ...]  # fp32, or all bf16 and rounded at random (see stochastic.py); updated
    grad: torch.Tensor  # fp32, bf16 or fp16, read
    param: torch.Tensor | None  # bf16 or fp16, written with the rounded master; None where there is none
    start: int = 0  # of stochastic rounding: the first element's index,
    stream: int = 0  # and what it is an index into: the tensor, or the bucket that this is a part of

    @property
    def is_split(self) -> bool:
        """Whether `param` is one half of the master, and is read too."""
        return self.master.dtype == REST_DTYPE

    def is_plain(self) -> bool:
        """Whether a kernel, which sees pointers and a length, can step it: dense, all laid out alike."""
        if self.master.dtype not in (torch.float32, REST_DTYPE):
            return False
        if {state.dtype for state in self.states} not in _STATE_DTYPES:
            return False
        if self.grad.dtype not in GRAD_DTYPES:
            return False
        if self.param is not None and self.param.dtype not in PARAM_DTYPES:
            return False
        others = (*self.states, self.grad, *(() if self.param is None else (self.param,)))
        strides = self.master.stride()
        return is_dense(self.master) and all(other.stride() == strides for other in others)


@dataclass(frozen=True, slots=True)
class Batch:
    """Shards of one device and the same dtypes as kernels take them.

    `words` are those of kernel_arguments.Entry, one entry after another: the pointers to master, the states
    (0 where there is none), grad and param (0: none), the number of elements, 0, `noise_word`.
    """

    words: Sequence[int]
    grad_dtype: torch.dtype
    param_dtype: torch.dtype | None
    device: torch.device
    low_states: bool = False  # bf16, not fp32
    is_split: bool = False  # masters are

    @property
    def out_code(self) -> int:
        """What kernels write beside masters and states: a DType of csrc/entry.h."""
        return _SPLIT_CODE if self.is_split else DTYPE_CODES[self.param_dtype]


@dataclass(frozen=True, slots=True)
class Control:
    """What a step is told beside its rule."""

    grad_scale: torch.Tensor | None = None  # fp32 scalar; gradients are multiplied by it; None is 1
    found_inf: torch.Tensor | None = None  # fp32 scalar; not 0: nothing is changed
    # For steps in CUDA graphs: fp32 scalars on the device that take the place of the rule's `step` and `lr`.
    counter: torch.Tensor | None = None  # counts applied steps
    advance: bool = True  # whether this one counts it up; only the first does of several that are one step
    lr: torch.Tensor | None = None
    num_threads: int | None = None  # of a step on CPUs; None: torch's


class Rule(Protocol):
    """One step's rule with its scalars: AdamWStep, LionStep, ..."""

    kernel: ClassVar[str]  # its name in csrc/
    num_states: ClassVar[int]
    whole_tensors: ClassVar[
        bool
    ]  # elements depend on one another, so that `reference` must see all of a tensor

    low_states: ClassVar[bool]  # whether there are kernels for states in bf16

    def scalars(self, low_states: bool) -> ctypes.Structure:
        """The kernel's scalars, as csrc has them."""

    def hyper(self) -> ctypes.Structure:
        """What the kernel computes its scalars from where the counter or the learning rate is on the GPU."""

    def reference(self, theta: torch.Tensor, states: tuple[torch.Tensor, ...], g: torch.Tensor) -> None:
        """The step in plain torch, in place on `theta` and `states`."""


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements are one run of memory in some order."""
    return tensor.is_contiguous() or (
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def batch_of(shards: Sequence[Shard]) -> Batch:
    """The plain `shards`, at least one, as a batch."""
    words: list[int] = []
    for shard in shards:
        states = [state.data_ptr() for state in shard.states] + [0] * (2 - len(shard.states))
        out = 0 if shard.param is None else shard.param.data_ptr()
        words += (shard.master.data_ptr(), *states, shard.grad.data_ptr(), out, shard.master.numel(), 0)
        words.append(noise_word(shard.start, shard.stream))
    first = shards[0]
    return Batch(
        words,
        first.grad.dtype,
        None if first.param is None else first.param.dtype,
        first.master.device,
        bool(first.states) and first.states[0].dtype == torch.bfloat16,
        first.is_split,
    )


def kernel_name(rule: Rule, batch: Batch) -> str:
    """The name in csrc/ of what steps `batch`."""
    return f"{rule.kernel}_bf16" if batch.low_states else rule.kernel


def noise_word(start: int, stream: int) -> int:
    """`start` (modulo 2^32) and `stream` as one word."""
    return start & 0xFFFFFFFF | stream << 32
