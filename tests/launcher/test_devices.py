"""Devices counted from fake machines: trees of device files, a fake NVML, fake tools."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dslaunch.launcher.accelerators import ACCELERATORS, VisibleDevices, visible_devices
from dslaunch.launcher.devices import LocalDevices, count, count_listed_gpus
from dslaunch.launcher.errors import UsageError

Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Make files (`path`), files with text (`path=text`) and links (`path->target`) under a root."""

    def build(*entries: str) -> Path:
        for entry in entries:
            name, arrow, target = entry.partition("->")
            name, _, text = name.partition("=")
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if arrow:
                path.symlink_to(target)
            else:
                path.write_text(f"{text}\n")
        return tmp_path / "root"

    return build


def gpu(minor: int, address: str, driver: str, vendor: str = "0x8086") -> tuple[str, ...]:
    """A card with its render node, as the kernel shows it."""
    device = f"sys/devices/pci0000:00/{address}"
    return (
        f"dev/dri/renderD{minor}",
        f"{device}/vendor={vendor}",
        f"{device}/driver->../../../bus/pci/drivers/{driver}",
        f"{device}/drm/card{minor - 128}/dev",
        f"sys/class/drm/renderD{minor}/device->../../../devices/pci0000:00/{address}",
    )


def kfd(node: int, gpu_id: int, render_minor: int | None = None) -> tuple[str, ...]:
    folder = f"sys/class/kfd/kfd/topology/nodes/{node}"
    properties = (
        ()
        if render_minor is None
        else (f"{folder}/properties=simd_count 4\ndrm_render_minor {render_minor}",)
    )
    return (f"{folder}/gpu_id={gpu_id}", *properties)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((), ("cpu", 0)),
        (("dev/null",), ("cpu", 0)),
        (
            ("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-caps/nvidia-cap1"),
            ("cuda", 2),
        ),
        (("dev/nvidia7",), ("cuda", 1)),
        ((*kfd(0, 0), *kfd(1, 4711), *kfd(2, 4712)), ("rocm", 2)),
        ((*kfd(0, 0, 0), *kfd(1, 4711, 128), *kfd(2, 4712, 129), "dev/dri/renderD129"), ("rocm", 1)),
        ((*kfd(1, 4711), "dev/nvidia0"), ("cuda", 1)),
        (gpu(128, "0000:3a:00.0", "xe"), ("xpu", 1)),
        (gpu(128, "0000:00:02.0", "i915"), ("cpu", 0)),
        ((*gpu(128, "0000:00:02.0", "i915"), *gpu(129, "0000:03:00.0", "i915")), ("xpu", 1)),
        (gpu(128, "0000:3a:00.0", "vfio-pci"), ("cpu", 0)),
        (gpu(128, "0000:3a:00.0", "amdgpu", "0x1002"), ("cpu", 0)),
        (gpu(128, "0000:3a:00.0", "xe")[1:], ("cpu", 0)),
        (
            (
                *gpu(128, "0000:3a:00.0", "xe"),
                "sys/devices/pci0000:00/0000:3a:00.0/tile0/gt0/id",
                "sys/devices/pci0000:00/0000:3a:00.0/tile1/gt0/id",
            ),
            ("xpu", 2),
        ),
        (
            (
                *gpu(128, "0000:3a:00.0", "i915"),
                "sys/devices/pci0000:00/0000:3a:00.0/drm/card0/gt/gt0/id",
                "sys/devices/pci0000:00/0000:3a:00.0/drm/card0/gt/gt1/id",
            ),
            ("xpu", 2),
        ),
        (("dev/davinci0", "dev/davinci1", "dev/davinci_manager"), ("npu", 2)),
        (("dev/accel/accel0", "dev/accel/accel1", "dev/accel/accel_controlD0"), ("hpu", 2)),
        (("dev/hl0", "dev/hl1", "dev/hl_controlD0"), ("hpu", 2)),
        (
            (
                "dev/accel/accel0",
                "dev/accel/accel1",
                "sys/class/accel/accel0/device/driver->../drivers/habanalabs",
                "sys/class/accel/accel1/device/driver->../drivers/intel_vpu",
                "sys/class/accel/accel_controlD0/device/driver->../drivers/habanalabs",
            ),
            ("hpu", 1),
        ),
        (("dev/accel/accel0", "sys/class/accel/accel0/device/driver->../drivers/intel_vpu"), ("cpu", 0)),
        (("dev/cambricon_dev0", "dev/cambricon_ctl"), ("mlu", 1)),
    ],
)
def test_devices_are_counted_from_files(
    build: Build, entries: tuple[str, ...], expected: tuple[str, int]
) -> None:
    assert count(build(*entries)) == LocalDevices(*expected)


def test_tiles_of_a_composite_hierarchy_are_one_device(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = "sys/devices/pci0000:00/0000:3a:00.0"
    root = build(*gpu(128, "0000:3a:00.0", "xe"), f"{folder}/tile0/id", f"{folder}/tile1/id")
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE")
    assert count(root) == LocalDevices("xpu", 1)


def test_an_accelerator_asked_for_is_what_comes_back(build: Build) -> None:
    root = build("dev/nvidia0", "dev/davinci0", "dev/davinci1")
    assert count(root, "auto") == LocalDevices("cuda", 1)
    assert count(root, "npu") == LocalDevices("npu", 2)
    assert count(root, "rocm") == LocalDevices("rocm", 0)
    assert count(root, "sdaa") == LocalDevices("sdaa", 0)
    assert count(root, "cpu") == LocalDevices("cpu", 0)
    with pytest.raises(UsageError) as refused:
        count(root, "gpu")
    assert str(refused.value) == "unknown accelerator 'gpu'"
    assert refused.value.hint == "use auto, cuda, rocm, xpu, npu, hpu, mlu, sdaa, supa, cpu"


def test_a_folder_that_is_a_file_is_no_device(build: Build) -> None:
    assert count(build("dev=x", "sys=x")) == LocalDevices("cpu", 0)


# A stand-in for NVIDIA's own binding, on a machine without their driver: it is imported as the real one is.
NVML = """
class NVMLError(Exception): pass
def nvmlInit():
    if {driver!r} == "missing": raise NVMLError
def nvmlDeviceGetCount():
    if {driver!r} == "lost": raise NVMLError
    return 3
def nvmlShutdown():
    if {driver!r} == "lost": raise NVMLError
"""


@pytest.mark.parametrize(("driver", "num_devices"), [("loaded", 3), ("missing", 2), ("lost", 2)])
def test_nvml_is_asked_first_and_a_tool_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, num_devices: int
) -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has NVIDIA devices of its own")
    (tmp_path / "pynvml.py").write_text(NVML.format(driver=driver))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n[ $1 = -L ] && echo 'GPU 0: A (UUID: x)' && echo 'GPU 1: A (UUID: y)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    try:
        assert count(accelerator="cuda") == LocalDevices("cuda", num_devices)
    finally:
        del sys.modules["pynvml"]


@pytest.mark.parametrize(
    "script", ["#!/bin/sh\necho 'GPU 0: A'\nexit 9\n", "#!/bin/sh\nexit 0\n", "not a program"]
)
def test_a_broken_tool_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has NVIDIA devices of its own")
    (tmp_path / "nvidia-smi").write_text(script)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert count(accelerator="cuda") == LocalDevices("cuda", 0)


def test_mig_instances_are_part_of_their_gpu() -> None:
    listing = (
        "GPU 0: NVIDIA A100 (UUID: GPU-1)\n"
        "  MIG 3g.20gb     Device  0: (UUID: MIG-1)\n"
        "  MIG 3g.20gb     Device  1: (UUID: MIG-2)\n"
        "GPU 1: NVIDIA A100 (UUID: GPU-2)\n"
    )
    assert count_listed_gpus(listing) == 2
    assert count_listed_gpus("No devices found.\n") == 0


def test_the_variables_of_every_accelerator() -> None:
    assert {kind: accelerator.visible_devices_variable for kind, accelerator in ACCELERATORS.items()} == {
        "cuda": "CUDA_VISIBLE_DEVICES",
        "rocm": "HIP_VISIBLE_DEVICES",
        "xpu": "ZE_AFFINITY_MASK",
        "npu": "ASCEND_RT_VISIBLE_DEVICES",
        "hpu": "HABANA_VISIBLE_MODULES",
        "mlu": "MLU_VISIBLE_DEVICES",
        "sdaa": "SDAA_VISIBLE_DEVICES",
        "supa": "SUPA_VISIBLE_DEVICES",
        "cpu": None,
    }


@pytest.mark.parametrize(
    ("value", "slots", "names"),
    [
        ("0,1", (0, 1), {}),
        ("3, 2", (3, 2), {}),
        (" 2 ,,3,", (2, 3), {}),
        ("1,-1,2", (1,), {}),
        ("-1", (), {}),
        ("", (), {}),
        (" , ", (), {}),
        ("NoDevFiles", (0,), {0: "NoDevFiles"}),
        ("GPU-a,GPU-b", (0, 1), {0: "GPU-a", 1: "GPU-b"}),
        ("MIG-GPU-a/1/0,MIG-b", (0, 1), {0: "MIG-GPU-a/1/0", 1: "MIG-b"}),
        ("GPU-a,-1,GPU-b", (0,), {0: "GPU-a"}),
        ("2,GPU-a", (0, 1), {0: "2", 1: "GPU-a"}),
        ("0.0,0.1", (0, 1), {0: "0.0", 1: "0.1"}),
        ("1,-1,1", (1,), {}),
    ],
)
def test_visible_devices_are_slots(value: str, slots: tuple[int, ...], names: dict[int, str]) -> None:
    assert visible_devices("CUDA_VISIBLE_DEVICES", value) == VisibleDevices(slots, names)


@pytest.mark.parametrize(("value", "device"), [("0,1,0", "0"), ("1,01", "1"), ("GPU-a,GPU-a", "GPU-a")])
def test_a_device_listed_twice_is_refused(value: str, device: str) -> None:
    with pytest.raises(UsageError) as refused:
        visible_devices("HIP_VISIBLE_DEVICES", value)
    assert str(refused.value) == f"HIP_VISIBLE_DEVICES={value} lists device {device} twice"
    assert refused.value.hint == "list each device once: every one is a slot"
