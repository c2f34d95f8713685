"""`dslaunchctl report`: a whole text, this machine's own, and torches that are broken in every way."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dslaunch.launcher.ctl.nvidia import Gpu, Nvidia, find_nvidia, parse_query
from dslaunch.launcher.ctl.report import Report, report_as_text
from dslaunch.launcher.ctl.torch_probe import Torch, probe_torch
from dslaunch.launcher.devices import LocalDevices

if TYPE_CHECKING:
    from conftest import Run


H200 = Report(
    dslaunch="0.1.0",
    python="3.12.3",
    executable="/venv/bin/python",
    platform="Linux-6.8-x86_64",
    torch=Torch("2.13.0", "13.0", None, "2.28.9", 2, 1.234),
    devices=LocalDevices("cuda", 2),
    nvidia=Nvidia("580.82", (Gpu(0, "NVIDIA H200", 150_754_820_096), Gpu(1, "NVIDIA H200", 150_754_820_096))),
    packages={"asyncssh": "2.21.0", "nvidia-ml-py": None},
    compilers={"g++": "g++ 13.2.0", "nvcc": None},
    tools={"ssh": "/usr/bin/ssh", "pdsh": None},
    kernels=("cuda_adamw.fatbin",),
)


def test_a_machine_with_gpus() -> None:
    assert report_as_text(H200).splitlines() == [
        "dslaunch      0.1.0",
        "python        3.12.3 (/venv/bin/python)",
        "platform      Linux-6.8-x86_64",
        "torch         2.13.0, imported in 1.2 s, sees 2 devices",
        "CUDA          13.0",
        "NCCL          2.28.9",
        "devices       2 x cuda",
        "driver        580.82",
        "  GPU 0       NVIDIA H200, 140.4 GiB",
        "  GPU 1       NVIDIA H200, 140.4 GiB",
        "kernels       cuda_adamw.fatbin",
        "g++           g++ 13.2.0",
        "nvcc          not found",
        "asyncssh      2.21.0",
        "nvidia-ml-py  not found",
        "ssh           /usr/bin/ssh",
        "pdsh          not found",
    ]


@pytest.mark.parametrize(
    ("torch", "lines"),
    [
        (
            Torch("2.13.0+cpu"),
            [
                "torch         2.13.0+cpu, imported in 0.0 s, sees 0 devices",
                "CUDA          none, torch was built without",
                "NCCL          none, torch was built without",
            ],
        ),
        (
            Torch("2.13.0+rocm", None, "6.4", "2.22", 8, 2.0),
            [
                "torch         2.13.0+rocm, imported in 2.0 s, sees 8 devices",
                "HIP           6.4",
                "NCCL          2.22",
            ],
        ),
        (
            Torch("2.13.0", error="ImportError: libcudart"),
            ["torch         2.13.0, broken: ImportError: libcudart"],
        ),
        (Torch(error="no module"), ["torch         unknown version, broken: no module"]),
    ],
)
def test_what_is_said_of_torch(torch: Torch, lines: list[str]) -> None:
    assert report_as_text(replace(H200, torch=torch)).splitlines()[3 : 3 + len(lines)] == lines


def test_this_machine(run: Run) -> None:
    ran = run("report", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(ran.stdout)
    assert set(found) == {
        *("dslaunch", "python", "executable", "platform", "torch", "devices", "nvidia"),
        *("packages", "compilers", "tools", "kernels"),
    }
    assert found["executable"] == sys.executable
    assert found["torch"]["version"]
    assert found["torch"]["error"] == ""
    assert found["packages"]["asyncssh"]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of every other on the paths of programs and of child interpreters' modules."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13: cannot open"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", f"killed by signal {int(signal.SIGKILL)}"),
        ("import threading; threading.Event().wait()", "importing it took longer than 1 s"),
        ("print('hello')", "AttributeError: module 'torch' has no attribute '__version__'"),
    ],
)
def test_a_broken_torch_is_a_fact_to_tell(fake: Path, source: str, error: str) -> None:
    (fake / "torch.py").write_text(source)
    found = probe_torch(timeout_s=1.0 if "wait" in source else 60.0)
    assert found.error == error
    assert found.version  # of the package that is installed


def test_query_of_nvidia_smi() -> None:
    text = "580.82.07, 0, 143771, NVIDIA H200\n580.82.07, 1, [N/A], NVIDIA GB10, rev. 2\n"
    assert parse_query(text) == Nvidia(
        "580.82.07", (Gpu(0, "NVIDIA H200", 143771 << 20), Gpu(1, "NVIDIA GB10, rev. 2", 0))
    )
    assert parse_query("") is None
    assert (
        parse_query("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") is None
    )


# A stand-in for NVIDIA's own binding, on a machine without their driver.
NVML = """
from types import SimpleNamespace
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(total=1 << 30)
def nvmlDeviceGetName(handle): return b"old" if handle else "new"
def nvmlSystemGetDriverVersion(): return "580.1"
"""


def test_the_library_is_asked_before_the_tool(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = fake / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '1.0, 0, 1, tool'\n")
    tool.chmod(0o755)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_nvidia() == Nvidia("1.0", (Gpu(0, "tool", 1 << 20),))
    monkeypatch.delitem(sys.modules, "pynvml")
    (fake / "pynvml.py").write_text(NVML)
    monkeypatch.syspath_prepend(fake)
    try:
        assert find_nvidia() == Nvidia("580.1", (Gpu(0, "new", 1 << 30), Gpu(1, "old", 1 << 30)))
    finally:
        del sys.modules["pynvml"]
