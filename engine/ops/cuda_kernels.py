"""Optimizer steps and norms on GPUs. All work is queued on the current stream; the host waits for nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from dslaunch.engine.ops import cuda_modules
from dslaunch.engine.ops.cuda_driver import THREADS, Argument, driver
from dslaunch.engine.ops.cuda_tables import Grid, Tables
from dslaunch.engine.ops.shard import DTYPE_CODES, Batch, Control, Rule, kernel_name

BLOCK_NUMEL = 1024  # kBlockNumel of csrc/cuda_launch.h
NORM_BLOCK_NUMEL = 16 * BLOCK_NUMEL  # kNormRounds times that
_MODULE_OF = {"sgd_momentum": "sgd", "adamw_bf16": "adamw"}
_SCALARS_BYTES = 64  # no optimizer's are larger


class CudaKernels:
    """The kernels of all GPUs of this process. Raises BuildError where there are none for the current one."""

    def __init__(self) -> None:
        self._tables = Tables()
        cuda_modules.function("norm", "norm_total", torch.cuda.current_device())

    def step(self, rule: Rule, batch: Batch, control: Control) -> None:
        grid = self._tables.grid(batch, BLOCK_NUMEL)
        device = grid.device
        scale, found_inf = _scalar(control.grad_scale, device), _scalar(control.found_inf, device)
        grid.launch.grad_scale, grid.launch.found_inf = _pointer(scale), _pointer(found_inf)
        prepared = None
        if control.counter is not None or control.lr is not None:
            prepared = self._prepare(rule, kernel_name(rule, batch), control, found_inf, device)
        if grid.num_blocks == 0:
            return
        if rule.whole_tensors:
            self._step_whole_tensors(rule, batch, grid, prepared)
            return
        name = kernel_name(rule, batch)
        dtypes = f"{DTYPE_CODES[batch.grad_dtype]}_{batch.out_code}"
        self._launch(
            name,
            f"{name}_{dtypes}",
            grid.num_blocks,
            device,
            [grid.launch, rule.scalars(batch.low_states), ctypes.c_void_p(_pointer(prepared))],
        )

    def sum_of_squares(self, grads: Sequence[torch.Tensor]) -> torch.Tensor:
        words: list[int] = []
        for grad in grads:
            words += (0, 0, 0, grad.data_ptr(), 0, grad.numel(), 0, 0)
        grid = self._tables.grid(Batch(words, grads[0].dtype, None, grads[0].device), NORM_BLOCK_NUMEL)
        total = torch.zeros((), dtype=torch.float64, device=grads[0].device)
        if grid.num_blocks == 0:
            return total
        partials = torch.empty(grid.num_blocks, dtype=torch.float64, device=grads[0].device)
        grid.launch.partials = partials.data_ptr()
        self._launch(
            "norm", f"norm_{DTYPE_CODES[grads[0].dtype]}", grid.num_blocks, grid.device, [grid.launch]
        )
        arguments: list[Argument] = [
            ctypes.c_void_p(partials.data_ptr()),
            ctypes.c_int64(grid.num_blocks),
            ctypes.c_void_p(total.data_ptr()),
        ]
        self._launch("norm", "norm_total", 1, grid.device, arguments)
        return total

    def _step_whole_tensors(
        self, rule: Rule, batch: Batch, grid: Grid, prepared: torch.Tensor | None
    ) -> None:
        """LAMB: moments and partial sums, the trust ratio of each tensor, the update."""
        device, scalars = grid.device, rule.scalars(False)
        partials = torch.empty(2 * grid.num_blocks, dtype=torch.float64, device=batch.device)
        step_sizes = torch.empty(grid.num_tensors, dtype=torch.float32, device=batch.device)
        grid.launch.partials = partials.data_ptr()
        in_graph, sizes = ctypes.c_void_p(_pointer(prepared)), ctypes.c_void_p(step_sizes.data_ptr())
        name = rule.kernel
        self._launch(
            name,
            f"{name}_moments_{DTYPE_CODES[batch.grad_dtype]}",
            grid.num_blocks,
            device,
            [grid.launch, scalars, in_graph],
        )
        self._launch(name, f"{name}_trust", grid.num_tensors, device, [grid.launch, scalars, in_graph, sizes])
        self._launch(
            name,
            f"{name}_update_{batch.out_code}",
            grid.num_blocks,
            device,
            [grid.launch, scalars, in_graph, sizes],
        )

    def _prepare(
        self, rule: Rule, name: str, control: Control, found_inf: torch.Tensor | None, device: int
    ) -> torch.Tensor:
        """The rule's scalars for a step whose number or learning rate is on the GPU, computed there."""
        scalars = torch.empty(_SCALARS_BYTES, dtype=torch.uint8, device=torch.device("cuda", device))
        lr = _scalar(control.lr, device)
        arguments: list[Argument] = [
            rule.hyper(),
            ctypes.c_void_p(_pointer(lr)),
            ctypes.c_void_p(_pointer(control.counter)),
            ctypes.c_int64(control.advance),
            ctypes.c_void_p(_pointer(found_inf)),
            ctypes.c_void_p(scalars.data_ptr()),
        ]
        self._launch(name, f"{name}_prepare", 1, device, arguments, threads=1)
        return scalars

    def _launch(
        self,
        kernel: str,
        name: str,
        num_blocks: int,
        device: int,
        arguments: Sequence[Argument],
        threads: int = THREADS,
    ) -> None:
        function = cuda_modules.function(_MODULE_OF.get(kernel, kernel), name, device)
        driver().launch(function, (num_blocks, threads), device, arguments)


def _scalar(tensor: torch.Tensor | None, device: int) -> torch.Tensor | None:
    """As fp32 on the device."""
    if tensor is None:
        return None
    return tensor.to(device=torch.device("cuda", device), dtype=torch.float32, non_blocking=True)


def _pointer(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
