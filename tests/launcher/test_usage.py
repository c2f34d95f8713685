"""What ranks and devices use, from the node to the run's folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dslaunch.launcher import wire
from dslaunch.launcher.agent.device_use import DeviceUse
from dslaunch.launcher.usage_log import UsageLog

NVML = """
typedef unsigned long long u64;
static int devices[2];
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index > 1) return 2;
    *device = &devices[index];
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, u64 *memory) {
    u64 used = device == devices ? 3 : 140000;
    memory[0] = 143771ull << 20; memory[1] = memory[0] - (used << 20); memory[2] = used << 20;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    if (device == devices) return 3;
    rates[0] = 97; rates[1] = 40;
    return 0;
}
"""
TAKE = """
import time
from dslaunch.launcher.agent.device_use import DeviceUse
use = DeviceUse([0, 1, 7])
while not (sample := use.take()):
    time.sleep(0.01)
print(*sample, sep="|")
"""


def test_devices_are_read_from_the_drivers_library(tmp_path: Path, environ: Mapping[str, str]) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to build a driver's library with")
    library = tmp_path / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=NVML, text=True, check=True)
    env = {**environ, "LD_LIBRARY_PATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", TAKE], env=env, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("0 3 0|1 140000 97\n", "")


def test_a_host_without_the_library_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dslaunch.launcher.agent.device_use._LIBRARY", "libno-such-driver.so.1")
    assert DeviceUse([0]).take() == ()


def test_samples_that_come_too_soon_are_passed_over(tmp_path: Path) -> None:
    log = UsageLog(tmp_path / "usage.jsonl")
    for _ in range(3):
        log.note(0, wire.Vitals(1, ("0 R 10 20", "1 S 10 20")))
        log.note(1, wire.Vitals(1, ("2 R 10 20",)))
        log.note(0, wire.DeviceUse(("0 3 97",)))
    log.close()
    kept = [json.loads(line) for line in (tmp_path / "usage.jsonl").read_text().splitlines()]
    assert [(one["node_rank"], one.get("ranks"), one.get("devices")) for one in kept] == [
        (0, ["0 R 10 20", "1 S 10 20"], None),
        (1, ["2 R 10 20"], None),
        (0, None, ["0 3 97"]),
    ]


Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_run_keeps_what_happened_and_what_was_used(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; print('up', flush=True); time.sleep(1.5)")
    assert run("--num_gpus=2", "--accelerator=cpu", "--run_dir=kept", "train.py").returncode == 0
    events = [json.loads(line) for line in (tmp_path / "kept/events.jsonl").read_text().splitlines()]
    names = [event["event"] for event in events]
    assert names[0] == "Opened"
    assert names[-1] == "Verdict"
    assert names.count("FirstOutput") == 2
    assert next(event for event in events if event["event"] == "Plan")["nodes"] == [
        {"host": "localhost", "ranks": {"0": 0, "1": 1}}
    ]
    (used, *_) = [json.loads(line) for line in (tmp_path / "kept/usage.jsonl").read_text().splitlines()]
    assert [words.split()[0] for words in used["ranks"]] == ["0", "1"]
    assert all(int(words.split()[3]) > 1000 for words in used["ranks"])
