"""Running jobs from other terminals: the real commands, and the registry on its own."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from marked import living, living_after

from dslaunch.launcher.control.registry import (
    FOLDER_VARIABLE,
    JobEntry,
    Registration,
    find_job,
    jobs_folder,
    registered,
    running_jobs,
    socket_path,
)
from dslaunch.launcher.errors import UsageError

PAYLOAD = str(Path(__file__).with_name("payload.py"))
ENTRY = JobEntry("0a1b2c3d", "train", 1, 1.5, "/job", "train.py", "")
Start = Callable[..., "subprocess.Popen[bytes]"]
CTL = (sys.executable, "-c", "import sys; from dslaunch.launcher.ctl.cli import main; sys.exit(main())")


@pytest.fixture(autouse=True)
def jobs_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "jobs"))
    return tmp_path / "jobs"


@pytest.fixture
def environ(environ: Mapping[str, str], jobs_of_this_test: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    mark = str(tmp_path)
    yield {**environ, FOLDER_VARIABLE: str(jobs_of_this_test), "NCCL_TEST_JOB": mark}
    for pid in living("NCCL_TEST_JOB", mark):  # of a test that failed
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def ctl(environ: dict[str, str], tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run `dslaunchctl` to its end."""

    def ctl(*argv: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*CTL, *argv], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
        )

    return ctl


Ctl = Callable[..., "subprocess.CompletedProcess[str]"]


def wait_until_up(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout is not None
    assert any(b"up" in line for line in process.stdout)


def attach(environ: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*CTL, "attach"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_an_entry_is_there_as_long_as_its_job() -> None:
    assert running_jobs() == []
    with registered(ENTRY) as registration:
        assert running_jobs() == []
        registration.publish()
        assert running_jobs() == [ENTRY]
        assert jobs_folder().stat().st_mode & 0o777 == 0o700
        assert next(jobs_folder().glob("*.json")).stat().st_mode & 0o777 == 0o600
    assert list(jobs_folder().iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_reaches_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as outer:
        os.chmod(outer, 0o755)
        monkeypatch.setenv(FOLDER_VARIABLE, f"{outer}/jobs")
        code = "import os, socket, sys; os.setuid(65534); socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        with registered(ENTRY), socket.socket(socket.AF_UNIX) as listening:
            path = os.fspath(socket_path(ENTRY.id))
            listening.bind(path)
            listening.listen()
            result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
            assert "PermissionError" in result.stderr


def test_what_a_crashed_job_leaves_is_removed() -> None:
    pid = os.fork()
    if pid == 0:
        Registration(ENTRY).publish()
        socket.socket(socket.AF_UNIX).bind(os.fspath(socket_path(ENTRY.id)))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert {path.suffix for path in jobs_folder().iterdir()} == {".json", ".socket"}
    with registered(replace(ENTRY, id="ffffffff")):
        assert [path.name for path in jobs_folder().iterdir()] == [".ffffffff.new"]
    assert running_jobs() == []
    assert list(jobs_folder().iterdir()) == []


def test_a_folder_that_others_may_enter_is_refused(jobs_of_this_test: Path) -> None:
    jobs_of_this_test.mkdir(mode=0o755)
    with pytest.raises(OSError, match="is not a folder of this user alone"):
        Registration(ENTRY)
    assert running_jobs() == []


def test_a_folder_whose_path_is_too_long_for_a_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / ("x" * 100)))
    with pytest.raises(OSError, match="too long for a socket's path"):
        Registration(ENTRY)


def test_ways_to_name_a_job(tmp_path: Path) -> None:
    (tmp_path / "a run").mkdir()
    other = replace(ENTRY, id="0affffff", name="a b", run_dir=str(tmp_path / "a run"))
    with registered(ENTRY) as first, registered(other) as second:
        first.publish()
        second.publish()
        assert find_job("0a1b") == find_job("train") == ENTRY
        assert find_job(str(tmp_path / "a run/")) == find_job("a b") == other
        with pytest.raises(UsageError, match="several jobs 0a run"):
            find_job("0a")
        with pytest.raises(UsageError, match="no job nope runs here"):
            find_job("nope")
        with pytest.raises(UsageError, match="several jobs run"):
            find_job(None)


def detach_in_a_terminal(environ: Mapping[str, str], cwd: Path, *argv: str) -> str:
    """Run `dslaunch --detach` in a terminal of its own, and close that; what was seen in it."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        code = "import sys; from dslaunch.launcher.cli import main; sys.exit(main())"
        os.execve(sys.executable, [sys.executable, "-c", code, *argv], dict(environ))
    seen = b""
    while b"runs in the background" not in seen:
        try:
            seen += os.read(terminal, 4096)
        except OSError:
            break  # it has ended
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGHUP), seen
    return seen.decode()


def test_a_detached_job_outlives_its_terminal_and_can_be_seen_and_touched(
    environ: dict[str, str], ctl: Ctl, tmp_path: Path
) -> None:
    flags = ("--num_gpus=3", "--detach", "--name=my job", "--run_dir=a run")
    seen = detach_in_a_terminal(environ, tmp_path, *flags, PAYLOAD, "wait")
    assert "3 ranks on 1 host meet at" in seen
    found = re.search(r"job (\w{8}) \(my job\) runs in the background", seen)
    assert found
    job = json.loads(ctl("ps", "--json").stdout)[0]
    assert (job["id"], job["name"], job["state"], job["run_dir"]) == (
        *(found[1], "my job", "running"),
        str(tmp_path / "a run"),
    )
    assert [rank["rank"] for rank in job["ranks"]] == [0, 1, 2]
    assert [line.split()[:2] for line in ctl("top", "my job").stdout.splitlines()[2:]] == [
        [str(rank), "localhost"] for rank in range(3)
    ]
    assert ctl("signal", "my job", "USR1", "--rank=1").returncode == 0
    while "USR1" not in (written := ctl("logs", "a run", "--rank=1", "-n2").stdout):
        assert ctl("ps", "my job").returncode == 0
    assert written == "up\nUSR1\n"
    assert re.fullmatch(r"ranks 0-2 in wait payload.py:\d+, waits in (sleep|select)\n", ctl("stack").stdout)
    assert ctl("stack", "--flight").stdout == ctl("stack").stdout
    assert re.search(
        r"^rank 2 on localhost, pid \d+, S, waits in (sleep|select)\n", ctl("stack", "--rank=2").stdout
    )

    attached = attach(environ)
    wait_until_up(attached)
    attached.send_signal(signal.SIGQUIT)
    _, err = attached.communicate(timeout=20)
    assert attached.returncode == 0, err

    assert ctl("kill", "my job").returncode == 0
    assert living_after("NCCL_TEST_JOB", str(tmp_path), 5) == []
    assert ctl("ps").stdout.splitlines()[1:] == []
    assert "ended by SIGTERM" in (tmp_path / "a run/console.log").read_text()
    assert sorted(ctl("logs", "a run").stdout.split("\n")) == ["", "[0] up", "[1] USR1", "[1] up", "[2] up"]


def test_a_detached_job_that_cannot_start_says_so_here(start: Start, tmp_path: Path) -> None:
    with start(
        "--detach", "--cwd=/no/where", PAYLOAD, "wait", env={"XDG_STATE_HOME": str(tmp_path / "state")}
    ) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 110
    assert b"error: localhost: no folder /no/where" in err
    assert list((tmp_path / "state/dslaunch").glob("payload-*/console.log"))


def test_ctrl_c_to_an_attached_terminal_ends_the_job(start: Start, environ: dict[str, str]) -> None:
    with start("--num_gpus=2", PAYLOAD, "wait") as job:
        wait_until_up(job)
        attached = subprocess.Popen(
            [*CTL, "attach"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        wait_until_up(attached)
        attached.send_signal(signal.SIGINT)
        _, said = attached.communicate(timeout=30)
        _, err = job.communicate(timeout=30)
    assert (job.returncode, attached.returncode) == (130, 130)
    assert b"dslaunch: ended by SIGINT" in err
    assert b"dslaunch: ended by SIGINT" in said


def test_logs_follow_until_the_end(start: Start, environ: dict[str, str], ctl: Ctl) -> None:
    with start("--num_gpus=2", PAYLOAD, "wait") as job:
        wait_until_up(job)
        following = subprocess.Popen([*CTL, "logs", "-f"], env=environ, stdout=subprocess.PIPE)
        assert following.stdout is not None
        while b"up" not in following.stdout.readline():
            pass
        assert ctl("signal", "payload", "12").returncode == 0  # USR2, of which they die
        rest, _ = following.communicate(timeout=30)
        job.communicate(timeout=30)
    assert job.returncode == 128 + signal.SIGUSR2
    assert following.returncode == 0, rest


def test_ten_jobs_at_once_and_one_whose_launcher_is_killed(start: Start, ctl: Ctl, tmp_path: Path) -> None:
    jobs = [start("--num_gpus=1", f"--name=job {i}", PAYLOAD, "wait") for i in range(10)]
    for job in jobs:
        wait_until_up(job)
    assert sorted(entry.name for entry in running_jobs()) == [f"job {i}" for i in range(10)]
    rows = ctl("ps").stdout.splitlines()[1:]
    assert len({row.split()[0] for row in rows}) == 10
    jobs[3].kill()
    jobs[3].communicate()
    assert "job 3" not in ctl("ps").stdout
    assert ctl("kill", "job 5", "--now").returncode == 0
    assert [job.poll() is None for job in (jobs[4], jobs[6])] == [True, True]
    for job in jobs:
        job.terminate()
    for job in jobs:
        job.communicate(timeout=30)
    assert living_after("NCCL_TEST_JOB", str(tmp_path), 5) == []


def test_a_job_that_waits_for_other_nodes_can_be_ended(start: Start, ctl: Ctl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = ("--no_ssh", "--num_nodes=2", "--num_gpus=1", "--node_rank=0", "--master_addr=127.0.0.1")
    with start(*place, f"--coordination_port={port}", PAYLOAD, "wait") as job:
        while not running_jobs():
            assert job.poll() is None
        ended = ctl("kill", "payload")
        job.communicate(timeout=30)
    assert ended.returncode == 0, ended.stderr
    assert job.returncode == 130


def test_words_that_name_nothing(ctl: Ctl) -> None:
    result = ctl("attach", "nope")
    assert result.returncode == 2
    assert result.stderr.startswith("error: no job nope runs here for this user\nhint: ")
