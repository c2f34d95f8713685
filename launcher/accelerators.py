"""The kinds of accelerators, and what launching on each takes. Data, and pure functions on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from dslaunch.launcher.errors import UsageError


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind, as DeepSpeed calls it.

    Attributes:
        visible_devices_variable: lists the devices a process may use; None where nothing is hidden.
        exported_prefixes: beginnings of the names of variables that go to every host.
    """

    kind: str
    visible_devices_variable: str | None
    exported_prefixes: tuple[str, ...]


# DeepSpeed 0.19, accelerator/*.py: visible_devices_envs() and export_envs(). Its cpu accelerator sets
# CUDA_VISIBLE_DEVICES, which no CPU rank reads; rocm's is that of its cuda accelerator under HIP.
ACCELERATORS: Mapping[str, Accelerator] = {
    accelerator.kind: accelerator
    for accelerator in (
        Accelerator("cuda", "CUDA_VISIBLE_DEVICES", ("NCCL",)),
        Accelerator("rocm", "HIP_VISIBLE_DEVICES", ("NCCL",)),
        Accelerator("xpu", "ZE_AFFINITY_MASK", ()),
        Accelerator("npu", "ASCEND_RT_VISIBLE_DEVICES", ("ASCEND", "HCCL", "LD_LIBRARY", "PATH")),
        Accelerator("hpu", "HABANA_VISIBLE_MODULES", ()),
        Accelerator("mlu", "MLU_VISIBLE_DEVICES", ("NEUWARE_HOME", "CNCL", "LD_LIBRARY", "PATH")),
        Accelerator("sdaa", "SDAA_VISIBLE_DEVICES", ("NCCL", "LD_LIBRARY", "PATH")),
        Accelerator("supa", "SUPA_VISIBLE_DEVICES", ("BCCL", "BIREN", "SUPA", "LD_LIBRARY", "PATH")),
        Accelerator("cpu", None, ()),
    )
}


@dataclass(frozen=True, slots=True)
class VisibleDevices:
    """What a visible-devices variable leaves: slots, and their names where those are no numbers."""

    slots: tuple[int, ...]
    names: Mapping[int, str]


def visible_devices(variable: str, value: str) -> VisibleDevices:
    """The slots that `variable`, set to `value`, leaves to this process, in the order it lists them.

    Numbers are slots as they stand. UUIDs, MIG instances and tiles (`GPU-8932f937`, `MIG-.../1/0`, `0.1`)
    have no numbers: they become slots 0, 1, ... with these names. An entry below 0 ends the list, as CUDA
    and HIP have it; nothing visible is no slot. Raises UsageError where a device is listed twice.
    """
    listed = [entry.strip() for entry in value.split(",") if entry.strip()]
    entries = list(takewhile(lambda entry: not entry.startswith("-"), listed))
    are_numbers = all(entry.isascii() and entry.isdecimal() and len(entry) < 10 for entry in entries)
    slots = tuple(int(entry) for entry in entries) if are_numbers else tuple(range(len(entries)))
    names = {} if are_numbers else dict(enumerate(entries))
    keys: list[int] | list[str] = list(slots) if are_numbers else entries
    for i, key in enumerate(keys):
        if key in keys[:i]:
            raise UsageError(
                f"{variable}={value} lists device {key} twice", "list each device once: every one is a slot"
            )
    return VisibleDevices(slots, names)
