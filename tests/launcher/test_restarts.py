"""Whether and where a job is started again: decided without a process, and done with real ones."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dslaunch.hostfile import Host
from dslaunch.launcher.restarts import Attempt, GiveUp, Limits, first_attempt, next_attempt
from dslaunch.launcher.verdict import (
    Cause,
    Interrupted,
    LaunchFailed,
    NodeLost,
    Preempted,
    RankEnd,
    RankFailed,
)

A, B, C, D = (Host(name, (0,)) for name in "abcd")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def failed(rank: int = 1, returncode: int = 1) -> RankFailed:
    return RankFailed(RankEnd(0, rank, returncode, 5, ""))


def test_the_last_hosts_are_spares() -> None:
    assert first_attempt((A, B, C, D), 1) == Attempt(0, (A, B, C), (D,))


def test_a_failed_rank_starts_the_same_hosts_again() -> None:
    first = first_attempt((A, B), 0)
    assert next_attempt(Limits(2, None), first, failed(), "step5") == Attempt(
        1, (A, B), (), failed(), "step5"
    )


def test_a_lost_host_is_replaced_in_its_place() -> None:
    first = first_attempt((A, B, C, D), 2)
    second = next_attempt(Limits(3, None), first, NodeLost(0, "gone"), "")
    assert second == Attempt(1, (C, B), (D,), NodeLost(0, "gone"), "")


def test_a_host_that_is_taken_away_is_replaced_too() -> None:
    second = next_attempt(Limits(3, None), first_attempt((A, B, C), 1), Preempted(1, 15), "")
    assert isinstance(second, Attempt)
    assert second.hosts == (A, C)


def test_a_host_with_processes_that_cannot_be_ended_is_not_used_again() -> None:
    first = first_attempt((A, B, C), 1)
    second = next_attempt(Limits(3, None), first, failed(), "", held={0})
    assert isinstance(second, Attempt)
    assert second.hosts == (C, B)
    assert second.spares == ()
    assert next_attempt(Limits(3, None), second, failed(rank=0), "", held={1}) == GiveUp(
        "processes on b cannot be ended, and there is no spare host"
    )
    third = next_attempt(Limits(3, 1), second, NodeLost(0, "gone"), "x", held={1})
    assert third == GiveUp("processes on b cannot be ended, and there is no spare host")
    fewer = next_attempt(Limits(3, 1), second, failed(rank=0), "", held={1})
    assert isinstance(fewer, Attempt)
    assert fewer.hosts == (C,)


def test_without_spares_the_job_goes_on_with_fewer_where_it_may() -> None:
    first = first_attempt((A, B, C), 0)
    second = next_attempt(Limits(3, 2), first, NodeLost(1, "gone"), "")
    assert isinstance(second, Attempt)
    assert second.hosts == (A, C)
    third = next_attempt(Limits(3, 2), second, NodeLost(0, "gone"), "step1")
    assert isinstance(third, Attempt)
    assert third.hosts == (A, C)  # no fewer than 2: it may come back


def test_a_host_that_cannot_be_used_needs_a_spare() -> None:
    cause = LaunchFailed(1, "cannot resolve", "")
    assert next_attempt(Limits(3, None), first_attempt((A, B), 0), cause, "") == GiveUp(
        "b cannot be used, and there is no spare host"
    )
    second = next_attempt(Limits(3, None), first_attempt((A, B, C), 1), cause, "")
    assert isinstance(second, Attempt)
    assert second.hosts == (A, C)


@pytest.mark.parametrize(
    ("limits", "last", "cause", "progress", "reason"),
    [
        (Limits(0, None), None, failed(), "", ""),
        (Limits(3, None), None, Interrupted(2), "", ""),
        (Limits(3, None), None, LaunchFailed(None, "no port", ""), "", ""),
        (Limits(1, None), failed(2), failed(), "", "1 restarts did not help (--max_restarts 1)"),
        (
            Limits(3, None),
            failed(),
            failed(),
            "step5",
            "the same failure came back, and no checkpoint was saved in between",
        ),
    ],
)
def test_when_to_give_up(
    limits: Limits, last: Cause | None, cause: Cause, progress: str, reason: str
) -> None:
    attempt = Attempt(0 if last is None else 1, (A, B), (), last, progress)
    assert next_attempt(limits, attempt, cause, progress) == GiveUp(reason)


def test_progress_and_another_failure_are_worth_another_try() -> None:
    attempt = Attempt(1, (A, B), (), failed(), "step5")
    assert isinstance(next_attempt(Limits(3, None), attempt, failed(), "step9"), Attempt)
    assert isinstance(next_attempt(Limits(3, None), attempt, failed(rank=0), "step5"), Attempt)
    assert isinstance(next_attempt(Limits(3, None), attempt, failed(returncode=-9), "step5"), Attempt)


FLAKY = """
import os, sys
attempt, rank = int(os.environ["DSLAUNCH_ATTEMPT"]), os.environ["RANK"]
print("attempt", attempt, "resume", os.environ.get("DSLAUNCH_RESUME"), flush=True)
if rank == "1" and attempt < int(sys.argv[-1]):
    if os.environ.get("SAVES"):
        open(os.environ["DSLAUNCH_PROGRESS_FILE"], "w").write(f"global_step{attempt}")
    sys.exit(5)
"""


def test_a_job_that_fails_twice_and_then_works(run: Run, tmp_path: Path) -> None:
    (tmp_path / "flaky.py").write_text(FLAKY)
    result = run("--num_gpus=2", "--max_restarts=3", "--env=SAVES=1", "flaky.py", "2")
    assert result.returncode == 0, result.stderr
    said = result.stderr.splitlines()
    assert [line for line in said if "restart" in line] == [
        "dslaunch: restart 1 of 3 on 1 host, from checkpoint global_step0",
        "dslaunch: restart 2 of 3 on 1 host, from checkpoint global_step1",
    ]
    shown = [line.split("] ")[1].split() for line in result.stdout.splitlines()]
    assert {(words[1], words[3]) for words in shown} == {("0", "None"), ("1", "1"), ("2", "1")}


def test_the_same_failure_without_a_checkpoint_is_not_tried_for_ever(run: Run, tmp_path: Path) -> None:
    (tmp_path / "flaky.py").write_text(FLAKY)
    result = run("--num_gpus=2", "--max_restarts=9", "flaky.py", "9")
    assert result.returncode == 5
    assert result.stderr.splitlines()[-1] == (
        "dslaunch: not restarted: the same failure came back, and no checkpoint was saved in between"
    )
