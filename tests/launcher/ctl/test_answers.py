"""Equal answers told once, as whole texts."""

from __future__ import annotations

import pytest

from dslaunch.launcher.ctl.answers import Answer, Exited, Lost, Unreachable, complaints, exit_code, folded

WELL = Exited(0)
REFUSED = Unreachable("connection refused", "is sshd running there?")


def test_equal_answers_stand_under_one_head() -> None:
    answers = [
        Answer("worker-0", WELL, b"a\n"),
        Answer("worker-1", Exited(3), b"b"),
        Answer("worker-2", WELL, b"a\n"),
        Answer("worker-3", WELL, b"a\n"),
        Answer("worker-4", Exited(3), b"a\n"),
        Answer("worker-7", WELL, b"a\n"),
    ]
    assert folded(answers).decode() == (
        "---------------\nworker-[0,2-3,7] (4)\n---------------\na\n"
        "---------------\nworker-1: exit code 3\n---------------\nb\n"
        "---------------\nworker-4: exit code 3\n---------------\na\n"
    )


def test_silence_is_told_only_where_something_went_wrong() -> None:
    answers = [
        Answer("a", WELL),
        Answer("b", Exited(1)),
        Answer("c", REFUSED),
        Answer("d", Lost("connection lost"), b"half"),
        Answer("e", Exited(1)),
    ]
    assert folded(answers).decode() == (
        "---------------\nb,e (2): exit code 1\n---------------\n"
        "---------------\nd: lost\n---------------\nhalf\n"
    )
    assert folded([Answer("a", WELL)]) == b""


def test_what_was_cut_is_counted() -> None:
    assert folded([Answer("a", WELL, b"x", 7)]).decode() == (
        "---------------\na\n---------------\nx\n... and 7 bytes more, which --no_fold shows\n"
    )


def test_any_bytes_are_shown_as_they_are() -> None:
    assert folded([Answer("a", WELL, b"\xff\x00\r\n")]).endswith(b"\n\xff\x00\r\n")


def test_hosts_with_the_same_trouble_stand_together() -> None:
    answers = [
        Answer("w0", REFUSED),
        Answer("w1", Exited(2)),
        Answer("w2", REFUSED),
        Answer("w3", Lost("connection lost")),
        Answer("w4", Exited(2)),
        Answer("w5", WELL),
    ]
    trouble = [
        "error: w[0,2]: connection refused",
        "hint: is sshd running there?",
        "error: w3: connection lost",
        "hint: the command was told to end; look at the host",
    ]
    assert complaints(answers, with_codes=False) == trouble
    assert complaints(answers, with_codes=True) == [*trouble[:2], "w[1,4]: exit code 2", *trouble[2:]]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], 0),
        ([WELL, WELL], 0),
        ([WELL, Exited(3), Exited(1)], 3),
        ([Exited(255), REFUSED, WELL], 110),
        ([Exited(255), REFUSED, Lost("x")], 111),
    ],
)
def test_one_exit_code_for_all(outcomes: list[Exited | Unreachable | Lost], code: int) -> None:
    assert exit_code([Answer(f"w{i}", outcome) for i, outcome in enumerate(outcomes)]) == code
