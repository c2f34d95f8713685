"""`dslaunchctl exec` on real hosts: what arrives, what is shown, and that nothing is left behind."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nasty_arguments import TEXT

from dslaunch.runner_backends.embedded import HostsThread, running_hosts

if TYPE_CHECKING:
    from conftest import Reach, Run, Start


LIMIT_S = 60.0


def words_seen(run: Run, tmp_path: Path, options: tuple[str, ...], words: list[str]) -> list[str]:
    """The arguments, as a process on the one selected host sees them."""
    seen = tmp_path / "seen"
    ran = run("exec", *options, "--", "sh", "-c", 'printf "%s\\0" "$@" >"$0"', str(seen), *words)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    return seen.read_bytes().decode().split("\0")[:-1]


def test_nasty_arguments_arrive_unchanged(run: Run, reach: Reach, hosts: HostsThread, tmp_path: Path) -> None:
    assert words_seen(run, tmp_path, (*reach(hosts), "--include=worker-1"), TEXT) == TEXT
    assert words_seen(run, tmp_path, (), TEXT) == TEXT


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=1))
def test_any_arguments_arrive_unchanged(run: Run, tmp_path: Path, words: list[str]) -> None:
    assert words_seen(run, tmp_path, (), words) == words


def test_equal_answers_are_shown_once(run: Run, reach: Reach, hosts: HostsThread) -> None:
    ran = run("exec", *reach(hosts), "--", "sh", "-c", "echo out; echo err >&2")
    assert ran.stdout == "---------------\nworker-[0-3] (4)\n---------------\nout\nerr\n"
    assert (ran.returncode, ran.stderr) == (0, "")


def test_filters_choose_hosts_and_the_largest_code_counts(run: Run, reach: Reach, hosts: HostsThread) -> None:
    port = hosts.hosts.port("worker-2")
    script = f'case $SSH_CONNECTION in *" {port}") echo odd; exit 9;; *) echo even; exit 3;; esac'
    ran = run("exec", *reach(hosts), "--exclude", "worker-0", "--", "sh", "-c", script)
    assert ran.stdout == (
        "---------------\nworker-[1,3] (2): exit code 3\n---------------\neven\n"
        "---------------\nworker-2: exit code 9\n---------------\nodd\n"
    )
    assert (ran.returncode, ran.stderr) == (9, "")


def test_lines_stream_behind_their_hosts_names(run: Run, reach: Reach, hosts: HostsThread) -> None:
    ran = run(
        "exec", *reach(hosts), "--num_nodes=2", "--no-fold", "--", "sh", "-c", "echo 1; printf 2; exit 4"
    )
    assert sorted(ran.stdout.splitlines()) == ["worker-0: 1", "worker-0: 2", "worker-1: 1", "worker-1: 2"]
    assert (ran.returncode, ran.stderr) == (4, "worker-[0-1]: exit code 4\n")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("false",), 1),
        (("sh", "-c", "exit 255"), 255),
        (("sh", "-c", "kill -9 $$"), 137),
        (("no-such-program",), 127),
        (("cat",), 0),
    ],
)
def test_exit_codes_of_this_machine(run: Run, argv: tuple[str, ...], code: int) -> None:
    ran = run("exec", *argv)
    assert (ran.returncode, ran.stderr) == (code, "")
    assert (f"localhost: exit code {code}\n" in ran.stdout) == (code != 0)


def test_programs_are_run_not_a_shells_own_words(run: Run) -> None:
    assert run("exec", "/bin/echo", "a\\tb").stdout == run("exec", "echo", "a\\tb").stdout
    assert run("exec", "ulimit").returncode == 127


def test_a_host_that_is_not_reached_stops_no_other(run: Run, reach: Reach, tmp_path: Path) -> None:
    with running_hosts(tmp_path / "hosts", 3) as hosts:
        hosts.stop("worker-1")
        ran = run("exec", *reach(hosts), "--", "sh", "-c", "echo here; exit 200")
    assert ran.stdout == "---------------\nworker-[0,2] (2): exit code 200\n---------------\nhere\n"
    assert re.fullmatch(r"error: worker-1: .*refused.*\nhint: .*\n", ran.stderr)
    assert ran.returncode == 110


def lines_of(process: subprocess.Popen[bytes], count: int) -> list[bytes]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def test_a_host_that_is_lost_is_said(start: Start, reach: Reach, tmp_path: Path) -> None:
    with running_hosts(tmp_path / "hosts", 1) as hosts:
        options = (*reach(hosts), "--no_fold")
        with start("exec", *options, "--", "sh", "-c", "echo up; exec sleep 1000") as process:
            assert lines_of(process, 1) == [b"worker-0: up\n"]
            hosts.stop("worker-0")
            _, err = process.communicate(timeout=LIMIT_S)
    assert err.decode().startswith("error: worker-0: connection lost")
    assert process.returncode == 111


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupt_ends_the_command_everywhere(
    start: Start, reach: Reach, hosts: HostsThread, number: signal.Signals, code: int
) -> None:
    options = (*reach(hosts), "--num_nodes=2", "--no_fold")
    with start("exec", *options, "--", "sh", "-c", "echo $$; exec sleep 1000") as process:
        pids = [int(line.split()[1]) for line in lines_of(process, 2)]
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err.decode()) == (code, "worker-[0-1]: exit code 143\n")
    assert not any(is_alive(pid) for pid in pids)


def test_a_command_may_clean_up_and_its_last_words_are_shown(start: Start) -> None:
    script = "exec 2>/dev/null; trap 'echo bye; exit 5' TERM; echo up; sleep 1000 & wait"
    with start("exec", "--no_fold", "--", "sh", "-c", script) as process:
        assert lines_of(process, 1) == [b"localhost: up\n"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (out, err) == (b"localhost: bye\n", b"localhost: exit code 5\n")
    assert process.returncode == 130


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[int]:
    """The reading end of tmp_path / "fifo"."""
    os.mkfifo(tmp_path / "fifo")
    fd = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    yield fd
    os.close(fd)


def read(fd: int) -> bytes:
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        assert selector.select(LIMIT_S), "nobody wrote to the FIFO"
        return os.read(fd, 4096)


def test_a_command_that_ignores_sigterm_is_killed(
    start: Start, reach: Reach, hosts: HostsThread, tmp_path: Path, fifo: int
) -> None:
    script = f"exec >{tmp_path}/fifo; trap '' TERM; echo up; while :; do sleep 1000; done"
    with start("exec", *reach(hosts), "--num_nodes=1", "--", "sh", "-c", script) as process:
        assert read(fifo) == b"up\n"
        process.send_signal(signal.SIGINT)
        assert read(fifo) == b""  # the last writer is gone
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130


def test_a_killed_dslaunchctl_leaves_nothing_behind(
    start: Start, reach: Reach, hosts: HostsThread, tmp_path: Path, fifo: int
) -> None:
    script = f"exec >{tmp_path}/fifo; echo up; exec sleep 1000"
    with start("exec", *reach(hosts), "--num_nodes=1", "--", "sh", "-c", script) as process:
        assert read(fifo) == b"up\n"
        process.kill()
    assert read(fifo) == b""  # the last writer is gone
