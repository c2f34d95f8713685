"""`deepspeed.accelerator`: the kind of device this process trains on, as one object with torch's functions.

Nothing here initialises CUDA before a function that needs a device is called.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

DeviceLike = int | str | torch.device | None

_KIBIBYTE = 1024


class Accelerator:
    """What CUDA and CPU have in common; names that only torch.cuda knows are looked up there."""

    _name: str

    def device_name(self, device_index: int | None = None) -> str:
        """`cuda:1`, or `cuda` without an index."""
        return self._name if device_index is None else f"{self._name}:{device_index}"

    def communication_backend_name(self) -> str:
        """torch.distributed's backend for these devices."""
        raise NotImplementedError

    def is_synchronized_device(self) -> bool:
        """Whether what was called has happened."""
        raise NotImplementedError

    def use_host_timers(self) -> bool:
        """Whether time is what the host's clock says."""
        return self.is_synchronized_device()

    resolves_data_dependency = handles_memory_backpressure = is_synchronized_device

    def random(self) -> types.ModuleType:
        """torch.random."""
        return torch.random

    def manual_seed(self, seed: int) -> None:
        """Seed this device's generator."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        """The tensor in page-locked memory, where that is of use."""
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in page-locked memory."""
        return tensor.is_pinned()

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on a device of this kind."""
        return tensor.device.type == self._name

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Bytes in use now."""
        raise NotImplementedError

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """Bytes in use at most so far."""
        raise NotImplementedError

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """Begin anew with the peak, where that can be."""
        raise NotImplementedError

    def supported_dtypes(self) -> list[torch.dtype]:
        """What models may be made of."""
        return [torch.float32, torch.float16, torch.bfloat16]

    def is_fp64_supported(self) -> bool:
        """Whether float64 works."""
        return True

    def is_triton_supported(self) -> bool:
        """Whether Triton could run here; the engine does not use it."""
        return False

    def range_push(self, msg: str) -> None:
        """Begin a profiler's range."""

    def range_pop(self) -> None:
        """End it."""

    def lazy_call(self, callback: Callable[[], object]) -> None:
        """Call it once the device is in use: now."""
        callback()

    @property
    def FloatTensor(self) -> Callable[..., torch.Tensor]:  # noqa: N802 - torch's name
        """Makes an fp32 tensor on this device."""
        return functools.partial(torch.tensor, dtype=torch.float32, device=self._name)

    @property
    def HalfTensor(self) -> Callable[..., torch.Tensor]:  # noqa: N802
        """Makes an fp16 tensor on this device."""
        return functools.partial(torch.tensor, dtype=torch.float16, device=self._name)

    @property
    def BFloat16Tensor(self) -> Callable[..., torch.Tensor]:  # noqa: N802
        """Makes a bf16 tensor on this device."""
        return functools.partial(torch.tensor, dtype=torch.bfloat16, device=self._name)

    @property
    def IntTensor(self) -> Callable[..., torch.Tensor]:  # noqa: N802
        """Makes an int32 tensor on this device."""
        return functools.partial(torch.tensor, dtype=torch.int32, device=self._name)

    @property
    def LongTensor(self) -> Callable[..., torch.Tensor]:  # noqa: N802
        """Makes an int64 tensor on this device."""
        return functools.partial(torch.tensor, dtype=torch.int64, device=self._name)

    @property
    def ByteTensor(self) -> Callable[..., torch.Tensor]:  # noqa: N802
        """Makes a uint8 tensor on this device."""
        return functools.partial(torch.tensor, dtype=torch.uint8, device=self._name)


class CpuAccelerator(Accelerator):
    """`get_accelerator()` where there is no GPU. Memory figures are this process's resident memory."""

    _name = "cpu"
    Stream = Event = None

    def communication_backend_name(self) -> str:
        return "gloo"

    def is_synchronized_device(self) -> bool:
        return True

    resolves_data_dependency = handles_memory_backpressure = is_synchronized_device

    def is_available(self) -> bool:
        """Always."""
        return True

    def device_count(self) -> int:
        """The ranks of this node: each counts as a device."""
        return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)

    def device(self, device_index: int | None = None) -> contextlib.AbstractContextManager[None]:
        """A context that changes nothing."""
        return contextlib.nullcontext()

    stream = device

    def set_device(self, device_index: DeviceLike) -> None:
        """Nothing to choose among."""

    def current_device(self) -> int:
        """This rank's place on its node."""
        return int(os.environ.get("LOCAL_RANK") or 0)

    def current_device_name(self) -> str:
        """`cpu`."""
        return "cpu"

    def current_stream(self, device_index: int | None = None) -> None:
        """There are no streams."""

    default_stream = current_stream

    def synchronize(self, device_index: int | None = None) -> None:
        """Everything has happened already."""

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        pass  # the kernel's mark stays

    empty_cache = synchronize
    reset_max_memory_allocated = reset_peak_memory_stats

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """The state of torch's CPU generator."""
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """Set it."""
        torch.set_rng_state(new_state)

    def initial_seed(self) -> int:
        """The seed of torch's CPU generator."""
        return torch.initial_seed()

    def memory_allocated(self, device_index: int | None = None) -> int:
        resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return resident_pages * os.sysconf("SC_PAGE_SIZE")

    memory_reserved = memory_cached = memory_allocated

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBIBYTE

    max_memory_reserved = max_memory_cached = max_memory_allocated

    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        """Bytes resident now and at most."""
        now, peak = self.memory_allocated(), self.max_memory_allocated()
        return {"allocated_bytes.all.current": now, "allocated_bytes.all.peak": peak}

    def total_memory(self, device_index: int | None = None) -> int:
        """Bytes of this machine's memory."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def available_memory(self, device_index: int | None = None) -> int:
        """Bytes of it that nobody has."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def is_bf16_supported(self) -> bool:
        """Always."""
        return True

    is_fp16_supported = is_bf16_supported


class CudaAccelerator(Accelerator):
    """`get_accelerator()` where there are GPUs: torch.cuda, and what has another name there."""

    _name = "cuda"

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def communication_backend_name(self) -> str:
        return "nccl"

    def is_synchronized_device(self) -> bool:
        return False

    resolves_data_dependency = handles_memory_backpressure = is_synchronized_device

    def current_device_name(self) -> str:
        """`cuda:N`."""
        return f"cuda:{torch.cuda.current_device()}"

    def manual_seed(self, seed: int) -> None:
        torch.cuda.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.cuda.manual_seed_all(seed)

    def is_fp16_supported(self) -> bool:
        """Always."""
        return True

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        return tensor.pin_memory()

    def memory_allocated(self, device_index: int | None = None) -> int:
        return torch.cuda.memory_allocated(device_index)

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return torch.cuda.max_memory_allocated(device_index)

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        torch.cuda.reset_peak_memory_stats(device_index)

    def total_memory(self, device_index: int | None = None) -> int:
        """Bytes of the device's memory."""
        return int(torch.cuda.get_device_properties(device_index).total_memory)

    def available_memory(self, device_index: int | None = None) -> int:
        """Bytes of the device's memory that nobody has."""
        return torch.cuda.mem_get_info(device_index)[0]

    def range_push(self, msg: str) -> None:
        torch.cuda.nvtx.range_push(msg)  # type: ignore[no-untyped-call]

    def range_pop(self) -> None:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


_chosen: Accelerator | None = None


def get_accelerator() -> Accelerator:
    """The one object of this process."""
    global _chosen
    if _chosen is None:
        # To look for a GPU must not start CUDA: a process that forks afterwards could not use it.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        _chosen = CudaAccelerator() if torch.cuda.is_available() else CpuAccelerator()
    return _chosen


def set_accelerator(accelerator: Accelerator) -> Accelerator:
    """Put another object in its place."""
    global _chosen
    _chosen = accelerator
    return accelerator
