"""Samples per second, as DeepSpeed's throughput timer tells them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_NUM_WARMUP_STEPS = 2  # left out of the running average, as DeepSpeed leaves them out
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Speed:
    """Samples of all ranks per second: since the warm-up, and since the last reading."""

    average: float
    current: float


class Throughput:
    """Counts optimizer steps between readings; the device is waited for at a reading only, if at all."""

    def __init__(
        self, device: torch.device, synchronized: bool, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._device = device
        self._synchronized = synchronized
        self._clock = clock
        self._num_steps = 0
        self._num_samples = 0  # since the warm-up
        self._num_read = 0  # of these, told by the last reading
        self._started_s: float | None = None
        self._read_s = 0.0

    def count(self, num_samples: int) -> None:
        """An optimizer step over `num_samples` has been issued."""
        self._num_steps += 1
        if self._num_steps == _NUM_WARMUP_STEPS:
            self._started_s = self._read_s = self._now()
        elif self._num_steps > _NUM_WARMUP_STEPS:
            self._num_samples += num_samples

    def read(self) -> Speed | None:
        """None during the warm-up."""
        if self._started_s is None or self._num_samples == self._num_read:
            return None
        now = self._now()
        speed = Speed(
            self._num_samples / max(now - self._started_s, 1e-9),
            (self._num_samples - self._num_read) / max(now - self._read_s, 1e-9),
        )
        self._num_read, self._read_s = self._num_samples, now
        return speed

    def _now(self) -> float:
        if self._synchronized and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock()


def memory_words(device: torch.device) -> str:
    """`MemAllocated=1.25GB, MaxMemAllocated=3.5GB` of `device`; zeros on the CPU, which nobody counts."""
    allocated, most = memory_gib(device)
    return f"MemAllocated={allocated}GB, MaxMemAllocated={most}GB"


def memory_gib(device: torch.device) -> tuple[float, float]:
    """What is allocated on `device` now and was at most, in GiB to two digits."""
    if device.type != "cuda":
        return 0.0, 0.0
    return (
        round(torch.cuda.memory_allocated(device) / _GIB, 2),
        round(torch.cuda.max_memory_allocated(device) / _GIB, 2),
    )
