"""Lines of chosen ranks, and marks in a GPU profiler."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
import torch.distributed as dist

from dslaunch.engine.log import logger

P = ParamSpec("P")
R = TypeVar("R")


def log_dist(message: object, ranks: Sequence[int] | None = None, level: int = logging.INFO) -> None:
    """Log `message` on these ranks; on all of them where -1 or none is named."""
    rank = dist.get_rank() if dist.is_initialized() else -1
    if not ranks or rank == -1 or rank in ranks or -1 in ranks:
        logger.log(level, "[Rank %d] %s", rank, message)


def print_rank_0(message: object, debug: bool = False, force: bool = False) -> None:
    """Print `message` on rank 0, if `debug` or `force`."""
    if (debug or force) and (not dist.is_initialized() or dist.get_rank() == 0):
        print(message)


def instrument_w_nvtx(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, a range in the GPU profiler where there is one."""

    @functools.wraps(function)
    def ranged(*args: P.args, **named: P.kwargs) -> R:
        if not torch.cuda.is_available():
            return function(*args, **named)
        with torch.cuda.nvtx.range(function.__qualname__):
            return function(*args, **named)

    return ranged


def caller_name(frame: int = 3) -> str:
    """The name of the function so many calls up."""
    return sys._getframe(frame).f_code.co_name
