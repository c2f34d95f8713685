"""The short way to a batch: what is the same in every step of a group is looked at once.

With hundreds of small tensors a step takes as long as Python needs to find their addresses, so here each
costs a few list operations and nothing else.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import is_

import torch

from dslaunch.engine.ops.kernel_arguments import ENTRY_NUM_WORDS
from dslaunch.engine.ops.shard import GRAD_DTYPES, PARAM_DTYPES, Batch, noise_word

_data_ptr = torch.Tensor.data_ptr
_is_contiguous = torch.Tensor.is_contiguous
State = dict[str, torch.Tensor]


class Roster:
    """Parameters of one dtype and device, contiguous, with states of one dtype that are too."""

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        states: Sequence[State],
        names: tuple[str, ...],
        streams: Sequence[int],
    ) -> None:
        self.params = params
        self.states = states
        self._low = params[0].dtype in PARAM_DTYPES
        self._names = (*names, "master") if self._low else names
        self._seen = [[state[name] for state in states] for name in self._names]
        num = len(params)
        self._words = array("q", bytes(8 * ENTRY_NUM_WORDS * num))
        self._words[5::ENTRY_NUM_WORDS] = array("q", [p.numel() for p in params])
        self._words[7::ENTRY_NUM_WORDS] = array("q", [noise_word(0, stream) for stream in streams])
        self._low_states = bool(names) and states[0][names[0]].dtype == torch.bfloat16

    @classmethod
    def of(
        cls,
        params: Sequence[torch.Tensor],
        states: Sequence[State],
        names: tuple[str, ...],
        streams: Sequence[int],
    ) -> Roster | None:
        """None where they are not all alike. `streams`: each parameter's, of stochastic rounding."""
        dtype, device = params[0].dtype, params[0].device
        if dtype not in GRAD_DTYPES:
            return None
        dtypes = {name: states[0][name].dtype for name in names}
        if len(set(dtypes.values())) > 1 or not set(dtypes.values()) <= {torch.float32, torch.bfloat16}:
            return None
        if dtype in PARAM_DTYPES:
            dtypes["master"] = torch.float32
        for p, state in zip(params, states, strict=True):
            if p.dtype != dtype or p.device != device or not p.is_contiguous():
                return None
            for name, expected in dtypes.items():
                if state[name].dtype != expected or not state[name].is_contiguous():
                    return None
        return cls(params, states, names, streams)

    def is_of(self, params: Sequence[torch.Tensor], state: Mapping[torch.Tensor, State]) -> bool:
        """Whether these are its parameters, and their states the tensors that were looked at."""
        return (
            len(params) == len(self.params)
            and all(map(is_, params, self.params))
            and all(map(is_, map(state.get, params), self.states))
            and all(
                all(map(is_, [state[name] for state in self.states], seen))
                for name, seen in zip(self._names, self._seen, strict=True)
            )
        )

    def clock(self) -> torch.Tensor | None:
        """The step counter that all share; None where they do not."""
        first = self.states[0]["step"]
        return first if all(map(is_, [state["step"] for state in self.states], repeat(first))) else None

    def batch(self, grads: Sequence[torch.Tensor]) -> Batch | None:
        """None where the gradients are not all of one dtype, contiguous, and where the parameters are."""
        dtype, device = grads[0].dtype, self.params[0].device
        if {grad.layout for grad in grads} != {torch.strided} or {grad.dtype for grad in grads} != {dtype}:
            return None
        if dtype not in GRAD_DTYPES or not all(map(_is_contiguous, grads)):
            return None
        if grads[0].device != device or not all(map(_is_contiguous, self.params)):
            return None
        masters = self._seen[-1] if self._low else self.params
        states = self._seen[:-1] if self._low else self._seen
        for column, tensors in enumerate((masters, *states)):
            self._words[column::ENTRY_NUM_WORDS] = array("q", map(_data_ptr, tensors))
        self._words[3::ENTRY_NUM_WORDS] = array("q", map(_data_ptr, grads))
        if self._low:
            self._words[4::ENTRY_NUM_WORDS] = array("q", map(_data_ptr, self.params))
        return Batch(
            self._words, dtype, self.params[0].dtype if self._low else None, device, self._low_states
        )
