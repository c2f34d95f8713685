"""`dslaunchctl selftest`: real faults here and on embedded hosts, and a table that does not praise."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dslaunch.launcher.ctl.chaos.faults import Fault
from dslaunch.launcher.ctl.chaos.judge import Row, as_text, wanted_code
from dslaunch.launcher.ctl.chaos.trial import Outcome, Trial
from dslaunch.launcher.ctl.selftest import faults_to_try
from dslaunch.launcher.errors import UsageError
from dslaunch.runner_backends.embedded import HostsThread

if TYPE_CHECKING:
    from conftest import Reach

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_faults_on_this_machine_leave_nothing(run: Run) -> None:
    ran = run("selftest", "--num_gpus=3", "--fault=rank's parent", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (row,) = json.loads(ran.stdout)["faults"]
    told = ("rank's parent SIGKILL", 137, 0, [])
    assert (row["fault"], row["exit_code"], row["num_left"], row["troubles"]) == told
    assert row["cause"]["kind"] == "RankFailed"
    assert row["noticed_s"] is not None


def test_faults_on_other_hosts_leave_nothing(run: Run, reach: Reach, hosts: HostsThread) -> None:
    ran = run("selftest", *reach(hosts), "--num_nodes=2", "--num_gpus=2", "--fault=agent")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    head, _, row, not_tried, last = ran.stdout.splitlines()
    assert head == "2 hosts, 4 ranks, launcher ssh"
    assert row.split()[:2] == ["agent", "SIGKILL"]
    assert row.split()[-3:] == ["111", "yes", "0"]
    assert not_tried.startswith("not tried: host killed, host cut off")
    assert last == "all well, 1 of 1 faults"


def test_hosts_that_cannot_be_used_are_named(run: Run) -> None:
    ran = run("selftest", "--launcher=ssh", "--force_multi")
    assert (ran.returncode, ran.stdout) == (2, "")
    ran = run("selftest", "--hostfile=-")
    assert ran.returncode == 2
    assert "error: --hostfile - with selftest, which launches many times" in ran.stderr


def test_what_no_fault_is_called_is_refused() -> None:
    with pytest.raises(UsageError, match="no fault begins with 'xyz'"):
        faults_to_try("ssh", ["xyz"])
    assert Fault.KILL_TOOL not in faults_to_try("ssh", [])
    assert Fault.KILL_TOOL in faults_to_try("pdsh", [])


def _trial(fault: Fault) -> Trial:
    return Trial(fault, victim=3, victim_node=1, num_ranks=4)


def _named(fault: Fault) -> dict[str, object]:
    match fault:
        case Fault.EXIT | Fault.EXIT_HEEDED:
            return {"kind": "RankFailed", "end": {"rank": 3, "returncode": 7}}
        case Fault.KILL_RANK | Fault.KILL_WRAPPER:
            return {"kind": "RankFailed", "end": {"rank": 3, "returncode": -9}}
        case Fault.TERM_CLI | Fault.HUP_CLI | Fault.INT_CLI:
            return {"kind": "Interrupted", "signal": int(fault.signal)}
        case _:
            return {"kind": "NodeLost", "node_rank": 1}


@pytest.mark.parametrize("fault", Fault)
def test_a_good_outcome_is_well_and_a_bad_one_is_not(fault: Fault) -> None:
    good = Outcome(0.1, 1.0, wanted_code(fault), 2.0, 0, _named(fault), "")
    assert Row(_trial(fault), good).troubles == []
    bad = [
        (replace(good, gone_s=None, num_left=2), "2 processes are left"),
        (replace(good, gone_s=10.5), "processes were left for more than 10 s"),
        (replace(good, exit_s=None, exit_code=None), "the command did not end"),
        (replace(good, exit_s=11.0), "the command took more than 10 s to end"),
        (replace(good, exit_code=0), f"exit code 0 instead of {wanted_code(fault)}"),
    ]
    if fault is not Fault.KILL_CLI:
        bad.append((replace(good, cause={}), "the cause was not named right"))
        bad.append(
            (replace(good, cause={"kind": "NodeLost", "node_rank": 0}), "the cause was not named right")
        )
    for outcome, trouble in bad:
        if fault is Fault.KILL_TOOL and outcome.cause.get("node_rank") == 0:
            continue  # one way leads to all hosts
        assert Row(_trial(fault), outcome).troubles == [trouble]


def test_the_table_tells_what_is_wrong_and_what_was_not_tried() -> None:
    good = Outcome(0.01, 1.0, 7, 2.0, 0, _named(Fault.EXIT), "")
    rows = [
        Row(_trial(Fault.EXIT), good),
        Row(_trial(Fault.KILL_CLI), replace(good, noticed_s=None, exit_code=137, gone_s=None, num_left=3)),
        Row(_trial(Fault.KILL_AGENT), None, "not all ranks came up: no"),
    ]
    assert as_text(rows, "2 hosts") == (
        "2 hosts\n"
        "fault          noticed  CLI ends  all gone  exit code  cause named  left\n"
        "rank exits 7   0.01 s   1.00 s    2.00 s    7          yes          0\n"
        "CLI SIGKILL    -        1.00 s    -         137        -            3\n"
        "    wrong: 3 processes are left\n"
        "agent SIGKILL\n"
        "    wrong: not all ranks came up: no\n"
        "not tried: host killed, host cut off (they need root on the hosts)\n"
        "2 of 3 faults went wrong"
    )
