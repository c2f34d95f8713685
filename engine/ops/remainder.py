"""An fp32 master in two halves of 16 bits: its bf16 parameter, and what its bits have beyond that.

Legend: `S` elements of a shard. `bits(x)` is an fp32 number's pattern as an integer, `high(p)` a bf16 one's
times 2^16. With p the master rounded to bf16 (to nearest, ties to even),

    rest = bits(master) - high(p)        master = high(p) + rest

is exact, as carries run into the exponent and into infinity in both. `rest` is a signed 16-bit number for all
but one pattern: a tie above an even p is 2^15 away from it, as the tie below p is with the other sign. 2^16
patterns cannot tell 65537 numbers apart, so ties above an even p are not kept: `settle_ties_` makes them one
unit in the last place smaller, which rounds to the same p. Every step onto bf16 parameters does that, in
kernels and here, whether masters are split or whole: what is trained does not depend on how it is kept.
NaN stays NaN, with another payload maybe; infinities and denormal numbers are exact.
csrc has the same as `join_master`, `rest_of` and `off_tie`.
"""

from __future__ import annotations

import torch

REST_DTYPE = torch.int16
_CHUNK_NUMEL = 1 << 18  # temporaries of a few such chunks, however large a shard is
_TIE_ABOVE_EVEN, _TIE_MASK = 0x8000, 0x1FFFF


def settle_ties_(master: torch.Tensor) -> None:
    """Move elements of fp32 `master` that lie halfway above an even bf16 number one unit towards it."""
    bits = master.view(torch.int32)
    bits -= (bits & _TIE_MASK).eq_(_TIE_ABOVE_EVEN)


def join(param: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The masters [S], fp32 and new, of bf16 `param` and int16 `rest` [S]."""
    master = torch.empty_like(rest, dtype=torch.float32)
    for whole, high, low in _chunks(master, param, rest):
        bits = whole.view(torch.int32)
        bits.copy_(high.view(torch.int16)).bitwise_left_shift_(16).add_(low)
    return master


def split_(master: torch.Tensor, param: torch.Tensor, rest: torch.Tensor) -> None:
    """Write fp32 `master` [S] into bf16 `param`, rounded, and int16 `rest`; `master` stays as it is."""
    for whole, high, low in _chunks(master, param, rest):
        settled = whole.to(high.device, copy=True)
        settle_ties_(settled)
        high.copy_(settled)
        bits = settled.view(torch.int32)
        bits -= high.view(torch.int16).int().bitwise_left_shift_(16)
        low.copy_(bits)


def _chunks(*tensors: torch.Tensor) -> zip[tuple[torch.Tensor, ...]]:
    return zip(*(torch.split(tensor, _CHUNK_NUMEL) for tensor in tensors), strict=True)
