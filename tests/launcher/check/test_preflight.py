"""`--preflight`: what is left to launch after findings, and the command with it on this machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dslaunch.launcher.check.host_answer import Finding, Severity
from dslaunch.launcher.check.preflight import go_on
from dslaunch.launcher.errors import PreflightError
from dslaunch.launcher.machine import Machine
from dslaunch.launcher.plan import Resolved
from dslaunch.launcher.request import LaunchRequest
from dslaunch.launcher.resolve import resolve

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def resolved(machine: Machine, **settings: object) -> Resolved:
    (machine.cwd / "hosts").write_text("a slots=1\nb slots=1\nc slots=1\nd slots=1\n")
    request = LaunchRequest(script="true", no_python=True, hostfile="hosts", **settings)  # type: ignore[arg-type]
    return resolve(request, machine)


def error(*hosts: str) -> Finding:
    return Finding(Severity.ERROR, hosts, "it is bad", "mend it")


def test_without_errors_all_hosts_are_launched(machine: Machine) -> None:
    launch = resolved(machine, drop_bad=True)
    assert go_on(launch, [Finding(Severity.WARNING, ("a",), "x", "y")]) == launch


def test_errors_end_the_launch(machine: Machine) -> None:
    with pytest.raises(PreflightError) as raised:
        go_on(resolved(machine), [error("a", "c"), error("a")])
    assert raised.value.what == "not launched: a,c cannot be used"
    assert raised.value.exit_code == 113


def test_bad_hosts_are_dropped_and_count_as_spares(machine: Machine) -> None:
    left = go_on(resolved(machine, drop_bad=True, max_restarts=1, spares=2), [error("a")])
    assert [host.name for host in left.topology] == ["b", "c", "d"]
    assert left.request.spares == 1
    left = go_on(left, [error("b"), error("c")])
    assert ([host.name for host in left.topology], left.request.spares) == (["d"], 0)


@pytest.mark.parametrize(("bad", "settings"), [("abcd", {}), ("ab", {"max_restarts": 1, "min_nodes": 3})])
def test_too_few_hosts_end_the_launch(machine: Machine, bad: str, settings: dict[str, int]) -> None:
    with pytest.raises(PreflightError) as raised:
        go_on(resolved(machine, drop_bad=True, **settings), [error(*bad)])
    assert raised.value.what == f"not launched: without {','.join(bad)} too few hosts are left"


def test_a_host_that_is_well_is_launched(run: Run, tmp_path: Path) -> None:
    ran = run("--preflight=full", "--run_dir=kept", "--no_python", "--no_local_rank", "echo", "up")
    assert (ran.returncode, ran.stdout) == (0, "up\n")
    assert ran.stderr.splitlines()[0].startswith("dslaunch: 1 host looked over in ")
    kept = json.loads((tmp_path / "kept/preflight.json").read_text())
    assert [host["host"] for host in kept["hosts"]] == ["localhost"]


def test_a_host_that_is_not_well_is_not_launched(run: Run, tmp_path: Path) -> None:
    ran = run(
        *("-q", "--preflight=fast", "--run_dir=kept", "--no_python", "echo"),
        env={"NCCL_SOCKET_IFNAME": "nope0"},
    )
    assert (ran.returncode, ran.stdout) == (113, "")
    first, second, third = ran.stderr.splitlines()
    assert first.startswith("dslaunch: error: localhost: NCCL_SOCKET_IFNAME=nope0 names no interface")
    assert second == "dslaunch: error: not launched: localhost cannot be used"
    assert third.startswith("dslaunch: hint: ")
    verdict = json.loads((tmp_path / "kept/verdict.json").read_text())
    assert (verdict["exit_code"], verdict["cause"]["kind"]) == (113, "PreflightError")


def test_nodes_started_by_hand_are_looked_over_by_hand(run: Run) -> None:
    ran = run("--no_ssh", "--node_rank=0", "--drop_bad", "--no_python", "true")
    assert ran.stderr == (
        "error: --preflight with nodes started by hand\nhint: run dslaunchctl check on each of them\n"
    )
    assert ran.returncode == 2
