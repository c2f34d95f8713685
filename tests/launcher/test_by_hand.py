"""Jobs that are started by hand, one launcher for each node, all on this machine."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

PAYLOAD = str(Path(__file__).with_name("payload.py"))
Start = Callable[..., "subprocess.Popen[bytes]"]
Pods = Callable[..., list["subprocess.Popen[bytes]"]]


def free_ports() -> int:
    """A port that is free, and the next one too, out of those that the kernel gives to nobody by itself."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port


@pytest.fixture
def pods(start: Start) -> Pods:
    """Start a launcher for each of two nodes with two ranks each."""

    def start_pods(
        *argv: str, ranks: Sequence[int | None] = (0, 1), flags: Sequence[Sequence[str]] = ((), ())
    ) -> list["subprocess.Popen[bytes]"]:
        common = ["--num_nodes=2", "--num_gpus=2", "--master_addr=127.0.0.1", f"--master_port={free_ports()}"]
        common += ["--start_timeout=20", "--lease=5"]
        return [
            start(*common, *([] if rank is None else ["--no_ssh", f"--node_rank={rank}"]), *own, *argv)
            for rank, own in zip(ranks, flags, strict=True)
        ]

    return start_pods


def ended(pods: list["subprocess.Popen[bytes]"]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each."""
    results = []
    for pod in pods:
        with pod:
            out, err = pod.communicate(timeout=60)
        results.append((pod.returncode, out.decode(), err.decode()))
    return results


def wait_until_up(pod: "subprocess.Popen[bytes]", num_ranks: int = 2) -> None:
    assert pod.stdout is not None
    for line in pod.stdout:
        num_ranks -= line.endswith(b"] up\n")
        if num_ranks == 0:
            return
    raise AssertionError(pod.stderr and pod.stderr.read())


def ranks(out: str) -> list[str]:
    return sorted(json.loads(line.partition("] ")[2])["rank"] for line in out.splitlines())


def test_every_node_runs_its_part_and_all_end_well(pods: Pods) -> None:
    (code0, out0, err0), (code1, out1, err1) = ended(pods(PAYLOAD, "echo"))
    assert (code0, code1) == (0, 0), err0 + err1
    assert (ranks(out0), ranks(out1)) == (["0", "1"], ["2", "3"])


def test_nodes_without_a_rank_are_given_one(pods: Pods) -> None:
    results = ended(pods(PAYLOAD, "echo", ranks=(None, None)))
    assert [code for code, _, _ in results] == [0, 0], results
    assert sorted(ranks(out) for _, out, _ in results) == [["0", "1"], ["2", "3"]]


def test_a_rank_that_dies_on_one_node_ends_the_other_with_the_same_words(pods: Pods) -> None:
    (code0, _, err0), (code1, _, err1) = ended(pods(PAYLOAD, "crash", "exit"))
    assert (code0, code1) == (7, 7)
    for err in (err0, err1):
        place = f"rank 1 (local rank 1, cpu) on {socket.gethostname()}"
        assert f"dslaunch: error: {place} exited with code 7" in err
        assert "dslaunch:     I give up" in err


def test_a_launcher_that_is_killed_is_a_lost_node_to_the_other(pods: Pods) -> None:
    first, second = pods(PAYLOAD, "wait")
    wait_until_up(first)
    wait_until_up(second)
    second.kill()
    second.communicate(timeout=20)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 111
    assert "(node rank 1) was lost" in err.decode()


def test_ctrl_c_on_one_node_ends_both(pods: Pods) -> None:
    first, second = pods(PAYLOAD, "wait")
    wait_until_up(first)
    wait_until_up(second)
    second.send_signal(signal.SIGINT)
    (code0, _, err0), (code1, _, _) = ended([first, second])
    assert (code0, code1) == (130, 130)
    assert "ended by SIGINT" in err0


def test_a_doubled_node_rank_is_named(pods: Pods) -> None:
    three = ["--num_nodes=3"]
    results = ended(pods(PAYLOAD, "echo", ranks=(0, 1, 1), flags=[three] * 3))
    assert [code for code, _, _ in results] == [110, 110, 110]
    assert all(out == "" for _, out, _ in results)
    assert all("--node_rank 1 was given twice" in err for _, _, err in results), results


def test_two_first_nodes_on_one_machine_are_told(pods: Pods) -> None:
    results = ended(pods(PAYLOAD, "echo", ranks=(0, 0), flags=[["--start_timeout=3"]] * 2))
    assert [code for code, _, _ in results] == [110, 110]
    assert any("the coordination port" in err and "is in use" in err for _, _, err in results)


def test_differing_arguments_are_named(pods: Pods, tmp_path: Path) -> None:
    common = [f"--master_port={free_ports()}"]
    results = ended(pods(PAYLOAD, "echo", flags=([*common, "--num_gpus=1"], common)))
    assert [code for code, _, _ in results] == [110, 110]
    assert all("world size" in err for _, _, err in results), results


def test_a_wrong_job_key_does_not_join(pods: Pods, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(os.urandom(16).hex())
    flags = [["--job_key_file=a", "--start_timeout=3"], ["--job_key_file=b", "--start_timeout=3"]]
    results = ended(pods(PAYLOAD, "echo", flags=flags))
    assert [code for code, _, _ in results] == [110, 110]
    assert any("key" in err for _, _, err in results)


def test_the_job_key_does_not_reach_ranks(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(os.urandom(16).hex())
    (tmp_path / ".deepspeed_env").write_text("ECHO=DSLAUNCH_JOB_KEY\n")
    results = ended(pods(PAYLOAD, "echo", flags=[["--job_key_file=key"]] * 2))
    assert [code for code, _, _ in results] == [0, 0], results
    lines = [json.loads(line.partition("] ")[2]) for _, out, _ in results for line in out.splitlines()]
    assert [line["env"] for line in lines] == [{"DSLAUNCH_JOB_KEY": None}] * 4
