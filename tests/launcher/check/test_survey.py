"""The surveyor on this machine, and its readers of what tools and the kernel say."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from healthy_hosts import answer

from dslaunch.launcher.render import survey_argv
from dslaunch.launcher.survey import gpus
from dslaunch.launcher.survey.devices import xid
from dslaunch.launcher.survey.main import survey
from dslaunch.launcher.survey.network import Doors, network
from dslaunch.launcher.survey.program import program
from dslaunch.launcher.survey.records import MARK, Answer, Gpu, Holder, Request, answer_from_json


def request(folder: Path, **changes: object) -> Request:
    asked = Request(0, 1, str(folder), "", False, "cpu", False, "localhost", (), (), 5.0)
    return asked._replace(**changes)  # type: ignore[arg-type]


def run(python: str, asked: Request, environ: dict[str, str]) -> Answer:
    """What a surveyor answers that runs as a process of its own."""
    ran = subprocess.run(
        survey_argv(python, asked), cwd="/", env=environ, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return answer_from_json(ran.stdout.partition(MARK)[2])


def test_it_finds_what_a_rank_would_and_imports_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    fake = tmp_path / "fake"
    (fake / "torch-9.8.7.dist-info").mkdir(parents=True)
    (fake / "torch-9.8.7.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 9.8.7\n"
    )
    (fake / "torch").mkdir()
    (fake / "torch/__init__.py").write_text("raise SystemExit('imported')")
    (fake / "torch/version.py").write_text("__version__ = '9.8.7'\ncuda: Optional[str] = '13.7'\n")
    (tmp_path / "train.py").write_text("print()\n")
    asked = request(tmp_path, script="train.py")
    found = run(sys.executable, asked, {**environ, "PYTHONPATH": str(fake)})
    assert found.software.packages["torch"] == "9.8.7"
    assert found.software.cuda == "13.7"
    assert found.software.python == ".".join(map(str, sys.version_info[:3]))
    assert found.program.digest == hashlib.sha256(b"print()\n").hexdigest()
    assert found.unknown == {}
    assert abs(found.time_ns - time.time_ns()) < 60e9
    assert found.machine.num_files > 0
    assert {space.purpose for space in found.machine.spaces} >= {"the folder", "temporary files"}


def test_it_fits_into_the_argv_of_a_tool(tmp_path: Path) -> None:
    assert sum(map(len, survey_argv("python3", request(tmp_path)))) < 32 * 1024  # zlib finds repeats this far


def test_answers_survive_json() -> None:
    found = answer(1, 3)._replace(unknown={"devices": "no answer"})
    holders, gpus_ = (Holder(0, 7, "python", 9),), (Gpu(0, "H200", 9, 8, ("slow",)),)
    found = found._replace(devices=found.devices._replace(gpus=gpus_, holders=holders, xids=("Xid 79",)))
    assert answer_from_json(found.to_json())._replace(time_ns=0) == found
    asked = request(Path("/"), calls=(("any port", ("10.0.0.1",), 1),), doors=(("any port", 1, 2),))
    assert Request.from_json(asked.to_json()) == asked


def test_a_part_that_fails_or_hangs_is_told_and_the_others_answer(tmp_path: Path) -> None:
    asked = request(tmp_path, accelerator="nonsense", limit_s=1.0, calls=(("any port", ("192.0.2.9",), 9),))
    started_at = time.monotonic()
    found = survey(asked)
    assert time.monotonic() - started_at < 30
    assert found.unknown["devices"].startswith("UsageError: unknown accelerator")
    assert found.unknown["network"] == "no answer in 1 s"
    assert found.software.executable == sys.executable


@pytest.mark.parametrize(
    ("folder", "script", "is_module", "folder_wrong", "script_wrong"),
    [
        ("", "train.py", False, "", ""),
        ("none", "train.py", False, "is not there", ""),
        ("", "none.py", False, "", "is not there"),
        ("train.py", "", False, "Not a directory", ""),
        ("", "package", False, "", ""),
        ("", "package.sub", True, "", ""),
        ("", "no_such_module.sub", True, "", "cannot be found"),
    ],
)
def test_folder_and_script(
    tmp_path: Path, folder: str, script: str, is_module: bool, folder_wrong: str, script_wrong: str
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__main__.py").write_text("")
    found = program(str(tmp_path / folder), script, is_module=is_module)
    assert (found.folder, found.script) == (folder_wrong, script_wrong)
    assert bool(found.digest) == (not folder_wrong and not script_wrong and not is_module)


def free_ports(number: int) -> Sequence[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_calls_find_open_doors_and_nothing_else(tmp_path: Path) -> None:
    door, closed = free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def greet() -> None:
            while True:
                try:
                    visitor, _ = stranger.accept()
                except OSError:
                    return
                with visitor:
                    visitor.sendall(b"SSH-2.0-strange" + b" " * 40)

        threading.Thread(target=greet, daemon=True).start()
        doors = Doors(request(tmp_path, doors=(("any port", door, 1),)))
        calls = tuple(
            ("any port", addresses, port)
            for addresses, port in (
                (("127.0.0.2", "127.0.0.1"), door),
                (("127.0.0.1",), closed),
                (("127.0.0.1",), stranger.getsockname()[1]),
                ((), 1),
            )
        )
        found = network(request(tmp_path, calls=calls, limit_s=1.0))
        stranger.shutdown(socket.SHUT_RDWR)
    doors.wait()
    assert [(call.address, call.error) for call in found.calls] == [
        (found.calls[0].address, ""),
        ("", "Connection refused"),
        ("", "someone else answers there"),
        ("", "has no address"),
    ]
    assert found.calls[0].address.startswith("127.0.0.")
    assert found.calls[0].interface == "lo"


def test_a_door_may_open_late(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    late = request(tmp_path, doors=(("any port", port, 1),))
    opened = threading.Timer(2.5, lambda: Doors(late))
    opened.start()
    found = network(request(tmp_path, calls=(("any port", ("127.0.0.1",), port),), limit_s=30.0))
    opened.join()
    assert [(call.address, call.error) for call in found.calls] == [("127.0.0.1", "")]


def test_a_door_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        doors = Doors(request(tmp_path, doors=(("master port", taken.getsockname()[1], 1),)))
    assert doors.closed == [("master port", "Address already in use")]


def test_variables_that_name_no_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "^docker,lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "=nope0,nope1")
    assert network(request(tmp_path)).missing_interfaces == (("GLOO_SOCKET_IFNAME", "=nope0,nope1"),)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "l")
    assert network(request(tmp_path)).missing_interfaces == ()


NVIDIA_SMI = """<?xml version="1.0" ?>
<nvidia_smi_log>
  <driver_version>580.95.05</driver_version>
  <gpu id="00000000:1A:00.0">
    <product_name>NVIDIA H200</product_name>
    <fb_memory_usage>
      <total>143771 MiB</total><reserved>600 MiB</reserved><used>31744 MiB</used>
    </fb_memory_usage>
    <ecc_errors>
      <volatile>
        <sram_uncorrectable_parity>0</sram_uncorrectable_parity><dram_uncorrectable>2</dram_uncorrectable>
      </volatile>
      <aggregate><dram_uncorrectable>99</dram_uncorrectable></aggregate>
    </ecc_errors>
    <retired_pages><pending_retirement>N/A</pending_retirement></retired_pages>
    <remapped_rows>
      <remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>
    </remapped_rows>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
      <clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
    </clocks_event_reasons>
    <processes>
      <process_info>
        <pid>4711</pid><type>C</type><process_name>python train.py</process_name>
        <used_memory>31000 MiB</used_memory>
      </process_info>
    </processes>
  </gpu>
  <gpu id="00000000:1B:00.0">
    <product_name>NVIDIA H200</product_name>
    <fb_memory_usage><total>143771 MiB</total><used>N/A</used></fb_memory_usage>
    <ecc_errors><volatile><double_bit><total>N/A</total></double_bit></volatile></ecc_errors>
  </gpu>
</nvidia_smi_log>
"""


def test_what_nvidia_smi_says() -> None:
    listed, holders = gpus.parse(NVIDIA_SMI)
    troubles = (
        "2 uncorrected memory errors since it was reset",
        "broken memory waits to be replaced by a reset",
        "is slowed down by its hardware (hw_slowdown)",
    )
    assert listed == (
        Gpu(0, "NVIDIA H200", 143771 << 20, 31744 << 20, troubles),
        Gpu(1, "NVIDIA H200", 143771 << 20, 0, ()),
    )
    assert holders == (Holder(0, 4711, "python train.py", 31000 << 20),)


@pytest.mark.parametrize("text", ["", "No devices were found", "<nvidia_smi_log>", "<nvidia_smi_log/>"])
def test_an_nvidia_smi_that_says_nothing(text: str) -> None:
    assert gpus.parse(text) == ((), ())


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            b"3,99,60000000,-;NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n",
            "Xid 79 on 0000:1a:00, 9 min ago",
        ),
        (b"3,99,60000000,-;NVRM: Xid (PCI:0000:1a:00): 31, MMU Fault\n", ""),
        (b"6,99,60000000,-;eth0: link up\n", ""),
        (b"NVRM: Xid", ""),
    ],
)
def test_errors_of_the_driver_in_the_kernels_log(record: bytes, said: str) -> None:
    assert xid(record, now_s=600.0) == said
    assert xid(record, now_s=600.0 + 48 * 3600) == ""
