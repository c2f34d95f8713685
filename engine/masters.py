"""The fp32 master of a shard, however it is kept. `S` elements of a rank's shard of a bucket.

  whole: a tensor of its own, [S] fp32, beside low-precision parameters; or the parameters themselves, in fp32
  split: bf16 parameters are one half of it, int16 [S] the other (see ops/remainder.py): 4 bytes, not 6

Split are the masters of bf16 parameters that the engine's own elementwise kernels step on the device. LAMB,
Muon, torch.optim's optimizers and steps on the host see whole ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dslaunch.engine.errors import EngineError
from dslaunch.engine.ops import remainder

PIECE_NUMEL = 1 << 19  # 2 MiB in fp32
_ALL = slice(None)


@dataclass(frozen=True, slots=True, eq=False)
class Master:
    """What is kept of a shard's master; `param` is the parameters' shard, on whichever side it lives."""

    param: torch.Tensor  # [S] compute dtype, or fp32
    kept: torch.Tensor  # [S] fp32: the master; int16: what it has beyond `param`

    @property
    def is_split(self) -> bool:
        """Whether `param` is one half of the master."""
        return self.kept.dtype == remainder.REST_DTYPE

    @property
    def is_param(self) -> bool:
        """Whether the parameters are fp32 and their own master."""
        return self.kept is self.param

    @property
    def out(self) -> torch.Tensor | None:
        """What a step writes beside `kept`; None: nothing."""
        return None if self.is_param else self.param

    def values(self, part: slice = _ALL) -> torch.Tensor:
        """The master's elements `part` in fp32: a view of a whole one, else a new tensor."""
        if not self.is_split:
            return self.kept[part]
        self._check_present()
        return remainder.join(self.param[part], self.kept[part])

    def pieces(self, part: slice) -> Iterator[torch.Tensor]:
        """`values(part)` one piece after another, so that a split master is never whole."""
        for start in range(part.start, part.stop, PIECE_NUMEL):
            yield self.values(slice(start, min(start + PIECE_NUMEL, part.stop)))

    @torch.no_grad()
    def write(self, values: torch.Tensor, part: slice = _ALL) -> None:
        """Set elements. Parameters follow at once where the master is split, else by `publish`."""
        if self.is_split:
            self._check_present()
            remainder.split_(values.detach().float(), self.param[part], self.kept[part])
        else:
            self.kept[part].copy_(values)

    @torch.no_grad()
    def publish(self, part: slice = _ALL) -> None:
        """Round the master into the parameters' shard."""
        if not (self.is_split or self.is_param):
            self.param[part].copy_(self.kept[part])

    @torch.no_grad()
    def refresh(self, part: slice = _ALL) -> None:
        """Take the master from the parameters, after something else has written those."""
        if self.is_split:
            self.kept[part].zero_()
        elif not self.is_param:
            self.kept[part].copy_(self.param[part])

    def _check_present(self) -> None:
        for tensor, kind in ((self.param, "lp_params"), (self.kept, "hp_params")):
            if tensor.numel() and tensor.untyped_storage().size() == 0:
                raise EngineError(
                    f"masters cannot be had while {kind} are offloaded", "call engine.reload_states() first"
                )
