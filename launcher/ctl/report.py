"""`dslaunchctl report`: what this machine has to train with, looked up in a second or two."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import which

from dslaunch.launcher import devices
from dslaunch.launcher.ctl.nvidia import Nvidia, find_nvidia
from dslaunch.launcher.ctl.tools import compiler_versions
from dslaunch.launcher.ctl.torch_probe import Torch, probe_torch
from dslaunch.launcher.devices import LocalDevices

_PACKAGES = ("asyncssh", "click", "nvidia-ml-py", "numpy", "paramiko", "PyYAML", "rich", "safetensors")
_TOOLS = ("ssh", "pdsh", "srun", "mpirun", "nvidia-smi")
_KERNEL_SUFFIXES = (".so", ".fatbin", ".cubin")


@dataclass(frozen=True, slots=True)
class Report:
    """One machine's. None is what it does not have.

    Attributes:
        packages: versions of what dslaunch uses; `compilers`: what they say of themselves.
        tools: paths of programs that are on PATH.
        kernels: file names of the engine's compiled kernels; without them it runs in pure torch.
    """

    dslaunch: str
    python: str
    executable: str
    platform: str
    torch: Torch
    devices: LocalDevices
    nvidia: Nvidia
    packages: Mapping[str, str | None]
    compilers: Mapping[str, str | None]
    tools: Mapping[str, str | None]
    kernels: tuple[str, ...]


def gather() -> Report:
    """Look everything up, programs at the same time. Nothing that is broken or missing raises."""
    with ThreadPoolExecutor() as pool:
        torch = pool.submit(probe_torch)
        nvidia = pool.submit(find_nvidia)
        compilers = pool.submit(compiler_versions)
        return Report(
            dslaunch=version("dslaunch"),
            python=platform.python_version(),
            executable=sys.executable,
            platform=platform.platform(),
            torch=torch.result(),
            devices=devices.count(),
            nvidia=nvidia.result(),
            packages={name: _version(name) for name in _PACKAGES},
            compilers=compilers.result(),
            tools={name: which(name) for name in _TOOLS},
            kernels=_kernels(Path(__file__).parents[2] / "engine"),
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _kernels(engine: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in engine.rglob("*") if path.suffix in _KERNEL_SUFFIXES))


def report_as_json(report: Report) -> str:
    """One object with the fields of Report."""
    return json.dumps(asdict(report), indent=2)


def report_as_text(report: Report) -> str:
    """A line a fact, names in a column of their own."""
    facts = [
        ("dslaunch", report.dslaunch),
        ("python", f"{report.python} ({report.executable})"),
        ("platform", report.platform),
        *_torch_facts(report.torch),
        ("devices", _devices(report.devices)),
        ("driver", report.nvidia.driver),
        *(
            (f"  GPU {gpu.index}", f"{gpu.name}, {gpu.memory_bytes / 2**30:.1f} GiB")
            for gpu in report.nvidia.gpus
        ),
        ("kernels", ", ".join(report.kernels) or "not built, the engine runs in pure torch"),
        *report.compilers.items(),
        *report.packages.items(),
        *report.tools.items(),
    ]
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name:{width}}  {value or 'not found'}" for name, value in facts)


def _torch_facts(torch: Torch) -> Sequence[tuple[str, str | None]]:
    if torch.error:
        return [("torch", f"{torch.version or 'unknown version'}, broken: {torch.error}")]
    toolkit = ("HIP", torch.hip) if torch.hip else ("CUDA", torch.cuda)
    return [
        ("torch", f"{torch.version}, imported in {torch.import_s:.1f} s, sees {torch.num_devices} devices"),
        *(
            (name, value or "none, torch was built without")
            for name, value in (toolkit, ("NCCL", torch.nccl))
        ),
    ]


def _devices(found: LocalDevices) -> str:
    return f"{found.num_devices} x {found.kind}" if found.num_devices else "none, ranks run on the CPU"
