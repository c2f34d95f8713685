"""Named random states, forked into for a while: Megatron's tracker, as DeepSpeed's `checkpointing` has it.

The states are those of the current GPU, or of the CPU where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dslaunch.engine.errors import EngineError

MODEL_PARALLEL = "model-parallel-rng"
_MODEL_PARALLEL_OFFSET = 2718  # Megatron's, so that seeds mean the same


class RngTracker:
    """States by name; `fork` runs a block on one of them and leaves the default state as it was."""

    def __init__(self) -> None:
        self._states: dict[str, torch.Tensor] = {}

    def reset(self) -> None:
        """Forget all states."""
        self._states = {}

    def get_states(self) -> dict[str, torch.Tensor]:
        """A copy of the mapping from name to state."""
        return dict(self._states)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Take up what `get_states` returned."""
        self._states = dict(states)

    def add(self, name: str, seed: int) -> None:
        """Name the state that `seed` gives; EngineError if the name is taken."""
        if name in self._states:
            raise EngineError(f"the random state {name} exists already", "call reset() first")
        before = _get()
        _seed(seed)
        self._states[name] = _get()
        _set(before)

    @contextmanager
    def fork(self, name: str = MODEL_PARALLEL) -> Iterator[None]:
        """Draw from the state `name` inside; it goes on from there next time."""
        if name not in self._states:
            raise EngineError(f"there is no random state {name}", f"add({name!r}, seed) first")
        before = _get()
        _set(self._states[name])
        try:
            yield
        finally:
            self._states[name] = _get()
            _set(before)


_TRACKER = RngTracker()


def get_cuda_rng_tracker() -> RngTracker:
    """The process's one tracker."""
    return _TRACKER


def model_parallel_cuda_manual_seed(seed: int) -> None:
    """Seed the device, and the tracker's model-parallel state; all ranks are data-parallel, so alike."""
    _TRACKER.reset()
    _seed(seed)
    _TRACKER.add(MODEL_PARALLEL, seed + _MODEL_PARALLEL_OFFSET)


def _get() -> torch.Tensor:
    return torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.get_rng_state()


def _set(state: torch.Tensor) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)


def _seed(seed: int) -> None:
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)
    else:
        torch.manual_seed(seed)
