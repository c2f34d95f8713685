"""The real command with real processes on this machine: what arrives, what is shown, what is left."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from marked import living, living_after
from nasty_arguments import NASTY

PAYLOAD = str(Path(__file__).with_name("payload.py"))
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


def job_processes(job: str) -> list[int]:
    """Pids of what lives of a job."""
    return living("NCCL_TEST_JOB", job)


def wait_for(process: "subprocess.Popen[bytes]", text: str, times: int) -> None:
    """Read stdout until a text was seen so many times."""
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += text.encode() in line
        if seen == times:
            return
    raise AssertionError(
        f"ended after {seen} of {times} {text!r}: {process.stderr and process.stderr.read()!r}"
    )


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A mark of this test, in the environment of all that it starts."""
    return f"{request.node.name}-{os.getpid()}"


def test_arguments_and_values_arrive_byte_for_byte(run: Run) -> None:
    env = {f"NCCL_{i}": value for i, value in enumerate(NASTY)}
    result = run("--num_gpus=2", PAYLOAD, "echo", *NASTY, env={**env, "ECHO": " ".join(env)})
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line.partition("] ")[2]) for line in result.stdout.splitlines()]
    assert sorted(line["rank"] for line in lines) == ["0", "1"]
    for line in lines:
        assert line["args"] == NASTY
        assert line["env"] == env


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=50).map(lambda data: os.fsdecode(data.replace(b"\0", b""))), max_size=5))
def test_arguments_of_any_bytes(run: Run, args: list[str]) -> None:
    result = run(PAYLOAD, "echo", *args)
    assert json.loads(result.stdout)["args"] == args


def test_env_files_count_on_one_node(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_text("export GREETING='hello  $HOME'\n")
    result = run(PAYLOAD, "echo", env={"ECHO": "GREETING WORLD_SIZE MASTER_ADDR"})
    assert json.loads(result.stdout)["env"] == {
        "GREETING": "hello  $HOME",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
    }


@pytest.mark.parametrize(
    ("how", "code", "words", "said"),
    [
        ("raise", 1, "exited with code 1", "RuntimeError: boom"),
        ("exit", 7, "exited with code 7", "I give up"),
        ("9", 137, "was killed by SIGKILL (not by dslaunch", "up"),
        ("11", 139, "was killed by SIGSEGV", "up"),
    ],
)
def test_a_rank_that_dies_ends_the_job(
    start: Start, job: str, how: str, code: int, words: str, said: str
) -> None:
    with start("--num_gpus=3", PAYLOAD, "crash", how, env={"NCCL_TEST_JOB": job}) as process:
        _, err = process.communicate(timeout=20)
    assert process.returncode == code
    last = err.decode().splitlines()
    assert any(
        line.startswith(f"dslaunch: error: rank 1 (local rank 1, cpu) on localhost {words}") for line in last
    )
    assert last[last.index("dslaunch: the others were:") - 1] == f"dslaunch:     {said}"
    assert last[-1] == "dslaunch: ended because of it: ranks 0, 2"
    assert job_processes(job) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_command_leave_nothing(start: Start, job: str, number: signal.Signals) -> None:
    with start("--num_gpus=2", PAYLOAD, "wait", env={"NCCL_TEST_JOB": job}) as process:
        wait_for(process, "up", 2)
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert f"dslaunch: ended by {number.name}" in err.decode().splitlines()
    assert job_processes(job) == []


def test_ranks_that_ignore_signals_are_killed_after_the_grace(start: Start, job: str) -> None:
    with start("--num_gpus=2", "--grace=0.3", PAYLOAD, "stubborn", env={"NCCL_TEST_JOB": job}) as process:
        wait_for(process, "up", 2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 143
    assert job_processes(job) == []


def test_a_second_ctrl_c_does_not_wait_for_the_grace(start: Start, job: str) -> None:
    with start("--num_gpus=2", "--grace=60", PAYLOAD, "stubborn", env={"NCCL_TEST_JOB": job}) as process:
        wait_for(process, "up", 2)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert any(b"stopping" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 130
    assert job_processes(job) == []


def test_kill_9_of_the_command_leaves_nothing(start: Start, job: str) -> None:
    with start("--num_gpus=2", PAYLOAD, "stubborn", env={"NCCL_TEST_JOB": job}) as process:
        wait_for(process, "up", 2)
        process.kill()
    assert living_after("NCCL_TEST_JOB", job, 10) == []


def test_kill_9_of_the_agent_leaves_nothing(start: Start, job: str) -> None:
    with start("--num_gpus=2", PAYLOAD, "stubborn", env={"NCCL_TEST_JOB": job}) as process:
        wait_for(process, "up", 2)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (agent,) = (int(pid) for pid in children)
        os.kill(agent, signal.SIGKILL)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 111
    assert (
        "dslaunch: error: host localhost (ranks 0, 1) was lost: its agent was killed by SIGKILL"
        in err.decode()
    )
    assert living_after("NCCL_TEST_JOB", job, 10) == []


def test_an_agent_that_someone_else_tells_to_end_was_preempted(start: Start, job: str) -> None:
    with start("--num_gpus=2", PAYLOAD, "wait", env={"NCCL_TEST_JOB": job}) as process:
        wait_for(process, "up", 2)
        (agent,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(agent), signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 114
    what = "host localhost was told to end by someone there, a batch system perhaps (SIGTERM)"
    assert f"dslaunch: error: preempted: {what}" in err.decode()
    assert living_after("NCCL_TEST_JOB", job, 10) == []


def test_notices_reach_the_ranks_and_change_nothing(start: Start, job: str) -> None:
    with start("--num_gpus=2", PAYLOAD, "wait", env={"NCCL_TEST_JOB": job}) as process:
        wait_for(process, "up", 2)
        process.send_signal(signal.SIGUSR1)
        wait_for(process, "USR1", 2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 143


def test_ctrl_z_does_not_put_the_launcher_to_sleep(start: Start, job: str) -> None:
    with start("--num_gpus=2", PAYLOAD, "wait", env={"NCCL_TEST_JOB": job}) as process:
        wait_for(process, "up", 2)
        process.send_signal(signal.SIGTSTP)
        assert process.stderr is not None
        assert any(b"Ctrl-Z is passed over" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 143


def test_stopped_ranks_are_ended_too(start: Start, job: str) -> None:
    with start("--num_gpus=2", "--grace=1", PAYLOAD, "wait", env={"NCCL_TEST_JOB": job}) as process:
        wait_for(process, "up", 2)
        for pid in job_processes(job):
            if pid != process.pid and b"payload.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 143
    assert job_processes(job) == []


def test_what_a_rank_leaves_behind_does_not_outlive_the_job(start: Start, job: str) -> None:
    with start("--num_gpus=2", PAYLOAD, "daemon", env={"NCCL_TEST_JOB": job}) as process:
        process.communicate(timeout=20)
    assert process.returncode == 0
    assert job_processes(job) == []


def test_no_line_is_torn_or_lost(run: Run) -> None:
    num_lines = 20_000
    result = run("--num_gpus=3", PAYLOAD, "flood", str(num_lines))
    lines = result.stdout.splitlines()
    assert len(lines) == 3 * num_lines
    assert all(re.fullmatch(r"\[localhost:(\d)\] \1 \d+ x+", line) for line in lines)
    for rank in "012":
        own = [int(line.split()[2]) for line in lines if line.startswith(f"[localhost:{rank}]")]
        assert own == list(range(num_lines))


def test_a_single_ranks_output_is_shown_as_it_is(run: Run) -> None:
    assert run("--no_python", "--no_local_rank", "printf", "a\\rb").stdout == "a\rb"


def test_a_busy_default_port_is_passed_over_and_a_busy_named_one_refused(run: Run) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        result = run("--num_gpus=2", f"--master_port={port}", PAYLOAD, "echo")
    assert result.returncode == 110
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"dslaunch: error: localhost: port {port} is in use",
        "dslaunch: hint: choose another with --master_port, or end who holds it",
    ]


def test_two_jobs_on_one_machine_do_not_meet(start: Start, run: Run) -> None:
    with start(PAYLOAD, "wait") as first:
        wait_for(first, "up", 1)  # its rank would bind the default port later, and never does here
        second = run(PAYLOAD, "echo", env={"ECHO": "MASTER_PORT"})
        first.send_signal(signal.SIGTERM)
        _, err = first.communicate(timeout=20)
    ports = {json.loads(second.stdout)["env"]["MASTER_PORT"]}
    ports.add(re.findall(r"meet at 127.0.0.1:(\d+)", err.decode())[0])
    assert len(ports) == 2


def test_no_ssh_runs_this_nodes_part(run: Run) -> None:
    flags = [
        "--coordination_port=none",
        "--no_ssh",
        "--num_nodes=2",
        "--num_gpus=2",
        "--node_rank=1",
        "--master_addr=10.0.0.1",
        "--master_port=7",
    ]
    result = run(
        *flags, PAYLOAD, "echo", env={"ECHO": "RANK LOCAL_RANK WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT"}
    )
    assert result.returncode == 0, result.stderr
    places = [json.loads(line.partition("] ")[2])["env"] for line in sorted(result.stdout.splitlines())]
    assert places == [
        {
            "RANK": str(2 + i),
            "LOCAL_RANK": str(i),
            "WORLD_SIZE": "4",
            "NODE_RANK": "1",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "7",
        }
        for i in range(2)
    ]


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--hostfile=nope", "x.py"], "error: no hostfile nope"),
        (["x.py"], "error: no script x.py in "),
        (["--include=localhost:99", "x.py"], "error: "),
        (["--nope", "x.py"], "error: No such option '--nope'"),
    ],
)
def test_bad_input_is_one_error_and_exit_2(run: Run, argv: list[str], error: str) -> None:
    result = run(*argv)
    assert result.returncode == 2
    assert result.stdout == ""
    first, hint = result.stderr.splitlines()
    assert first.startswith(error)
    assert hint.startswith("hint: ")


def test_a_program_that_cannot_be_run(run: Run) -> None:
    result = run("--no_python", "no-such-program")
    assert result.returncode == 110
    assert "rank 0 cannot be started" in result.stderr
    assert "Traceback" not in result.stderr
