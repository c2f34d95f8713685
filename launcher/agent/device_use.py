"""What NVIDIA devices use, by the driver's own library (NVML) without a binding for it."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence

SAMPLE_S = 5.0
_LIBRARY = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class DeviceUse:
    """Samples in a thread of its own, for the driver may take seconds to wake and must not hold the agent."""

    def __init__(self, slots: Sequence[int]) -> None:
        """`slots` are the devices' indices; those that the driver does not know are left out."""
        self._slots = slots
        self._sample: tuple[str, ...] = ()
        threading.Thread(target=self._run, name="device-use", daemon=True).start()

    def take(self) -> tuple[str, ...]:
        """The newest sample, once: `slot used_mib busy_percent` for each device; () where there is none."""
        sample, self._sample = self._sample, ()
        return sample

    def _run(self) -> None:
        try:
            library = ctypes.CDLL(_LIBRARY)
            if library.nvmlInit_v2() != 0:
                return
            devices = [(slot, device) for slot in self._slots if (device := _device(library, slot))]
            while devices:
                self._sample = tuple(
                    words for slot, device in devices if (words := _words(library, slot, device))
                )
                time.sleep(SAMPLE_S)
        except (OSError, AttributeError):
            return  # no driver here, or one that is too old


def _device(library: ctypes.CDLL, slot: int) -> ctypes.c_void_p | None:
    device = ctypes.c_void_p()
    failed = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(slot), ctypes.byref(device))
    return None if failed else device


def _words(library: ctypes.CDLL, slot: int, device: ctypes.c_void_p) -> str:
    memory, utilization = _Memory(), _Utilization()
    if library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0:
        return ""
    if library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(utilization)) != 0:
        utilization = _Utilization()  # MIG instances tell none
    return f"{slot} {memory.used >> 20} {utilization.gpu}"
