"""What the engine's collectives have moved, and how fast: DeepSpeed's `comms_logger`.

While a log is active every collective is waited for, so that its time is its own. Bandwidths are in Gbit/s:
`algbw` is the message over the time, `busbw` what a link has carried (NCCL tests, PERFORMANCE.md).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
import torch.distributed as dist

from dslaunch.engine import log
from dslaunch.engine.config_observe import CommsLoggerConfig

P = ParamSpec("P")
T = TypeVar("T")

_BUS_FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
}


@dataclass(slots=True)
class Total:
    """All collectives of one kind and one message size."""

    count: int = 0
    seconds: float = 0.0


class CommsLog:
    """Collectives by kind and message size in bytes."""

    def __init__(self, config: CommsLoggerConfig, num_ranks: int) -> None:
        self._config = config
        self._num_ranks = num_ranks
        self.totals: dict[tuple[str, int], Total] = {}

    def wants(self, kind: str) -> bool:
        """Whether the config asks for this kind, by its name or torch's (`all_gather_into_tensor`)."""
        return self._config.prof_all or any(name.startswith(kind) for name in self._config.prof_ops)

    def add(self, kind: str, num_bytes: int, seconds: float, caller: str = "") -> None:
        """Count one collective of `num_bytes` (the whole message, all ranks' parts)."""
        total = self.totals.setdefault((kind, num_bytes), Total())
        total.count += 1
        total.seconds += seconds
        if self._config.verbose:
            algbw, busbw = self._bandwidths(kind, num_bytes, seconds)
            by = f" | issued by: {caller}" if self._config.debug else ""
            log.say(
                dist.get_rank() if dist.is_initialized() else 0,
                f"comm op: {kind} | time (ms): {seconds * 1e3:.2f} | msg size: {_size(num_bytes)} | "
                f"algbw (Gbps): {algbw:.2f} | busbw (Gbps): {busbw:.2f}{by}",
            )

    def summary(self) -> list[str]:
        """A table: one line per kind and size, most time first."""
        head = f"{'Comm. Op':<16}{'Message Size':>14}{'Count':>8}{'Total (ms)':>12}{'Avg (ms)':>10}"
        lines = [f"{head}{'algbw (Gbps)':>14}{'busbw (Gbps)':>14}"]
        ordered = sorted(self.totals.items(), key=lambda item: -item[1].seconds)
        for (kind, num_bytes), total in ordered:
            average_s = total.seconds / total.count
            algbw, busbw = self._bandwidths(kind, num_bytes, average_s)
            lines.append(
                f"{kind:<16}{_size(num_bytes):>14}{total.count:>8}{total.seconds * 1e3:>12.2f}"
                f"{average_s * 1e3:>10.2f}{algbw:>14.2f}{busbw:>14.2f}"
            )
        return lines

    def _bandwidths(self, kind: str, num_bytes: int, seconds: float) -> tuple[float, float]:
        algbw = num_bytes * 8 / max(seconds, 1e-9) / 1e9
        factor = _BUS_FACTORS.get(kind)
        return algbw, algbw if factor is None else algbw * factor(self._num_ranks)


_active: CommsLog | None = None


def activate(log_of: CommsLog | None) -> None:
    """Log every collective of this process from now on into `log_of`; None: no more."""
    global _active
    _active = log_of


def log_summary() -> None:
    """Say on rank 0 what was logged so far; nothing where `comms_logger` is off."""
    if _active is not None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        for line in _active.summary():
            log.say(rank, line)


def logged(kind: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function that issues one collective on its first argument, the whole message.

    What it returns may have `work`, which is then waited for; waiting for it again does no harm.
    """

    def decorate(issue: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(issue)
        def timed(*args: P.args, **named: P.kwargs) -> T:
            if _active is None or not _active.wants(kind):
                return issue(*args, **named)
            tensor = args[0]
            assert isinstance(tensor, torch.Tensor)
            _settle(tensor)
            started_s = time.perf_counter()
            pending = issue(*args, **named)
            work = getattr(pending, "work", None)
            if work is not None:
                work.wait()
            _settle(tensor)
            seconds = time.perf_counter() - started_s
            _active.add(kind, tensor.numel() * tensor.element_size(), seconds, issue.__name__)
            return pending

        return timed

    return decorate


def _settle(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KB", "MB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GB"
