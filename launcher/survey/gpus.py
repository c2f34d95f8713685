"""What NVIDIA's tool tells of its devices, out of the XML of `nvidia-smi -q -x`. Pure but for the call.

Elements come and go with the driver's version: what is not there is not known, and no trouble.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from dslaunch.launcher.programs import output_of
from dslaunch.launcher.survey.records import Gpu, Holder

_SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


def query() -> tuple[tuple[Gpu, ...], tuple[Holder, ...]]:
    """Devices, and the processes that use them; nothing where the tool is missing or fails."""
    return parse(output_of("nvidia-smi", "-q", "-x"))


def parse(text: str) -> tuple[tuple[Gpu, ...], tuple[Holder, ...]]:
    """Devices and their processes, in the tool's order, which is that of the indices."""
    try:
        log = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return (), ()
    gpus, holders = [], []
    for index, found in enumerate(log.iter("gpu")):
        memory = found.find("fb_memory_usage")
        gpus.append(
            Gpu(
                index,
                found.findtext("product_name", "").strip(),
                _mebibytes(memory, "total"),
                _mebibytes(memory, "used"),
                tuple(_troubles(found)),
            )
        )
        for process in found.iter("process_info"):
            pid = process.findtext("pid", "").strip()
            command = process.findtext("process_name", "").strip()
            if pid.isdecimal():
                holders.append(Holder(index, int(pid), command, _mebibytes(process, "used_memory")))
    return tuple(gpus), tuple(holders)


def _mebibytes(parent: Element | None, name: str) -> int:
    found = re.match(r"\s*(\d+) MiB", "" if parent is None else parent.findtext(name, ""))
    return int(found[1]) << 20 if found else 0


def _troubles(gpu: Element) -> Iterator[str]:
    """What is wrong with a device, in words."""
    if num_errors := _uncorrected(gpu.find("ecc_errors/volatile")):
        yield f"{num_errors} uncorrected memory errors since it was reset"
    if _says(gpu, "remapped_rows/remapped_row_failure", "yes"):
        yield "no spare rows left to replace broken memory"
    if _says(gpu, "remapped_rows/remapped_row_pending", "yes"):
        yield "broken memory waits to be replaced by a reset"
    if any(
        _says(gpu, f"retired_pages/{name}", "yes") for name in ("pending_retirement", "pending_blacklist")
    ):
        yield "broken memory pages wait to be retired by a reset"
    for kind in ("event", "throttle"):
        for reason in _SLOWDOWNS:
            if _says(gpu, f"clocks_{kind}_reasons/clocks_{kind}_reason_{reason}", "active"):
                yield f"is slowed down by its hardware ({reason})"


def _uncorrected(volatile: Element | None) -> int:
    """Older drivers count `double_bit/total`, newer ones DRAM and SRAM apart."""
    if volatile is None:
        return 0
    texts = [volatile.findtext("double_bit/total", "")]
    texts += [
        child.text or ""
        for child in volatile
        if re.fullmatch(r"(dram|sram)_uncorrectable(_parity|_secded)?", child.tag)
    ]
    return sum(int(text) for text in map(str.strip, texts) if text.isdecimal())


def _says(gpu: Element, path: str, word: str) -> bool:
    return gpu.findtext(path, "").strip().lower() == word
