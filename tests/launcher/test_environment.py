"""Env files line by line, and what of the launcher's environment goes along."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.environment import EnvFile, forward, parse_env_file
from dslaunch.launcher.errors import UsageError


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("A=1", {"A": "1"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("\ufeffA=1\n", {"A": "1"}),
        ("\n# note: x=y\n  # indented\nA=1\n\n", {"A": "1"}),
        ("export A=1", {"A": "1"}),
        ("A = 1", {"A": "1"}),
        ("A=", {"A": ""}),
        ("A=a=b=c", {"A": "a=b=c"}),
        ('A="a b"', {"A": "a b"}),
        ("A='it''s'", {"A": "'it''s'"[1:-1]}),
        ("A='$HOME `x` $(y)'", {"A": "$HOME `x` $(y)"}),
        ("A=$HOME/x", {"A": "$HOME/x"}),
        ('A={"a": "b"}', {"A": '{"a": "b"}'}),
        ("A=x # y", {"A": "x # y"}),
        ("A='one\ntwo'\nB=3", {"A": "one\ntwo", "B": "3"}),
        ("A=1\nA=2", {"A": "2"}),
        ("A='x' y", {"A": "'x' y"}),
    ],
)
def test_lines_that_are_read(text: str, variables: dict[str, str]) -> None:
    assert parse_env_file(text, "f").variables == variables


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("A=1\nNAME", "f:2: not NAME=VALUE: 'NAME'"),
        ("=1", "f:1: not NAME=VALUE: '=1'"),
        ("T A=1", "f:1: not NAME=VALUE: 'T A=1'"),
        ("1A=1", "f:1: not NAME=VALUE: '1A=1'"),
        ("\n\nA='one\ntwo", "f:3: the quote ' is never closed"),
    ],
)
def test_lines_that_are_refused(text: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_env_file(text, "f")
    assert str(caught.value) == error
    assert caught.value.hint


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse_env_file(text, "f").path == "f"


def test_prefixes_of_every_accelerator_go_along_and_files_win() -> None:
    environ = {
        "NCCL_DEBUG": "INFO",
        "PYTHONHASHSEED": "0",
        "UCX_TLS": "rc",
        "HCCL_X": "1",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "HOME": "/root",
        "WANDB_API_KEY": "secret",
    }
    home = EnvFile("~/.deepspeed_env", {"NCCL_DEBUG": "WARN", "X": "home"})
    here = EnvFile("./.deepspeed_env", {"X": "here"})
    forwarded = forward(environ, [home, here], cwd="/job")
    assert forwarded.variables == {
        "NCCL_DEBUG": "WARN",
        "PYTHONHASHSEED": "0",
        "UCX_TLS": "rc",
        "HCCL_X": "1",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "PYTHONPATH": "/job",
        "X": "here",
    }
    assert forwarded.counts == {
        "~/.deepspeed_env": 1,
        "PYTHON": 2,
        "UCX": 1,
        "HCCL": 1,
        "TORCH_NCCL": 1,
        "GLOO": 1,
        "./.deepspeed_env": 1,
    }
    assert forwarded.num_dropped == 2


def test_pythonpath_keeps_what_was_there() -> None:
    assert forward({"PYTHONPATH": "/a:/b"}, [], cwd="/job").variables == {"PYTHONPATH": "/job:/a:/b"}
