"""Which kernels a device has: found at first use, and said once where there are none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import torch

from dslaunch.engine.log import logger
from dslaunch.engine.ops.shard import Batch, Control, Rule
from dslaunch.engine.ops.toolchain import BuildError, NoCompilerError


class Backend(Protocol):
    """The kernels of one kind of device."""

    def step(self, rule: Rule, batch: Batch, control: Control) -> None:
        """See step.step_."""

    def sum_of_squares(self, grads: Sequence[torch.Tensor]) -> torch.Tensor:
        """See norm.sum_of_squares."""


_COST = {
    "cpu": "optimizer steps on the CPU take 1.2 times (fp32) to 4 times (bf16) as long",
    "cuda": "optimizer steps on the GPU take 3 to 4 times as long",
}
_found: dict[str, Backend | None] = {}


def of(device: torch.device) -> Backend | None:
    """The kernels for `device`; None: use plain torch. `DSLAUNCH_OPS=torch` asks for that."""
    if device.type not in _COST or os.environ.get("DSLAUNCH_OPS") == "torch":
        return None
    if device.type not in _found:
        _found[device.type] = _find(device.type)
    return _found[device.type]


def forget() -> None:
    """Look anew at the next use."""
    _found.clear()


def _find(kind: str) -> Backend | None:
    try:
        return _open_cuda() if kind == "cuda" else _open_cpu()
    except NoCompilerError as error:
        reason = str(error).replace("\nhint: ", "; ")
        logger.warning("no kernels for %s, plain torch instead: %s (%s)", kind, _COST[kind], reason)
    except BuildError as error:
        logger.warning("no kernels for %s, plain torch instead: %s\n%s", kind, _COST[kind], error)
    return None


def _open_cpu() -> Backend:
    from dslaunch.engine.ops.cpu_library import CpuLibrary

    return CpuLibrary.open()


def _open_cuda() -> Backend:
    from dslaunch.engine.ops.cuda_kernels import CudaKernels

    return CudaKernels()
