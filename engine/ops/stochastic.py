"""Rounding to bf16 up or down at random, right on average: the torch form of csrc/stochastic.h, bit for bit.

The randomness is a hash of the step, of a stream (the number of a tensor or bucket) and of the element's
index in it. It needs no generator and no state, and does not depend on how many ranks, blocks or threads
share the elements.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def noise(numel: int, start: int, stream: int, step: int, device: torch.device) -> torch.Tensor:
    """[numel] int64: 32 random bits for each of the elements from `start` on of `stream` in step `step`."""
    index = torch.arange(numel, dtype=torch.int64, device=device) + (start & _MASK)
    key = _mixed(_mixed(torch.tensor(step & _MASK, device=device)) ^ (stream & _MASK))
    return _mixed((index * 0x9E3779B9 + key) & _MASK)


def rounded(values: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    """fp32 `values` in bf16, up with the probability of what is cut off; `random`: 16 bits for each."""
    bits = values.contiguous().view(torch.int32).to(torch.int64) & _MASK
    bits = torch.where(values.isnan(), bits | 0x400000, bits + random.view(values.shape)) >> 16
    return bits.to(torch.int16).view(torch.bfloat16)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """Of 32-bit numbers in int64, whose products may wrap: their lower half is right."""
    x = x ^ x >> 16
    x = x * 0x7FEB352D & _MASK
    x = x ^ x >> 15
    x = x * 0x846CA68B & _MASK
    return x ^ x >> 16
