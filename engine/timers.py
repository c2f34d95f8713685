"""How long the phases of a training step take: by CUDA events on GPUs, which nobody waits for until asked.

A stopwatch adds up laps. On the CPU a lap is host time; on a GPU it is what lies between two events on the
current stream.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, Protocol

import torch

Phase = Literal["forward", "backward", "step"]
PHASES: Mapping[Phase, str] = {"forward": "fwd", "backward": "bwd", "step": "step"}  # DeepSpeed's words

_MAX_PENDING_LAPS = 256


class Stopwatch(Protocol):
    """Adds up laps until it is read."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def take_ms(self) -> float:
        """All laps since the last take; waits for the device where a lap has not ended there yet."""


class HostStopwatch:
    """Laps of host time."""

    def __init__(self) -> None:
        self._total_s = 0.0
        self._started_s = 0.0

    def start(self) -> None:
        self._started_s = time.perf_counter()

    def stop(self) -> None:
        self._total_s += time.perf_counter() - self._started_s

    def take_ms(self) -> float:
        total_s, self._total_s = self._total_s, 0.0
        return total_s * 1e3


class CudaStopwatch:
    """Laps of the current stream."""

    def __init__(self) -> None:
        self._laps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._free: list[torch.cuda.Event] = []
        self._start: torch.cuda.Event | None = None
        self._total_ms = 0.0

    def start(self) -> None:
        self._start = self._event()

    def stop(self) -> None:
        assert self._start is not None
        self._laps.append((self._start, self._event()))
        if len(self._laps) > _MAX_PENDING_LAPS:
            self._fold(_MAX_PENDING_LAPS // 2)

    def take_ms(self) -> float:
        self._fold(len(self._laps))
        total_ms, self._total_ms = self._total_ms, 0.0
        return total_ms

    def _event(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _fold(self, num_laps: int) -> None:
        for start, end in self._laps[:num_laps]:
            end.synchronize()
            self._total_ms += start.elapsed_time(end)
            self._free += (start, end)
        del self._laps[:num_laps]


def new_stopwatch(device: torch.device) -> Stopwatch:
    """A stopwatch for work on `device`."""
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()


class PhaseTimers:
    """One stopwatch per phase."""

    def __init__(self, device: torch.device) -> None:
        self._watches: dict[Phase, Stopwatch] = {phase: new_stopwatch(device) for phase in PHASES}

    @contextmanager
    def lap(self, phase: Phase) -> Iterator[None]:
        """Count what happens inside to `phase`."""
        watch = self._watches[phase]
        watch.start()
        try:
            yield
        finally:
            watch.stop()

    def take_ms(self, num_steps: int) -> dict[Phase, float]:
        """Milliseconds per optimizer step of each phase, over the `num_steps` since the last take."""
        return {phase: watch.take_ms() / num_steps for phase, watch in self._watches.items()}
