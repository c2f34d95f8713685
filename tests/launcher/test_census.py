"""Stacks as Python writes them, folded over ranks; and the census of real processes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from marked import living

from dslaunch.launcher import wire
from dslaunch.launcher.agent.hook import HookFolder
from dslaunch.launcher.agent.kernel_state import kernel_state
from dslaunch.launcher.census import Kind, group, lines
from dslaunch.launcher.stacks import Frame, communicates, main_thread, place

PAYLOAD = str(Path(__file__).with_name("payload.py"))
SLEEP = "sleep" if sys.version_info >= (3, 11) else "select"
SITE = "/v/lib/python3.11/site-packages"
COLLECTIVE = f"""\
main thread 0x7f01
Thread 0x00007f99 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f01 [python3] (most recent call first):
  File "{SITE}/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "{SITE}/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/job/train step.py", line 212 in step
  File "/job/train step.py", line 9 in <module>
"""
LOADER = f"""\
Thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "{SITE}/torch/utils/data/dataloader.py", line 630 in __next__
  File "/job/loader.py", line 88 in batches
"""
PY_SPY = """\
Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    read_shard (data (old).py:5)
    <module> (train.py:3)
Thread 9 (active): "Thread-1"
    run (threading.py:982)
"""


def stack(rank: int, text: str, state: str = "S", waits_in: str = "") -> wire.Stack:
    return wire.Stack(rank, 100 + rank, state, waits_in, text)


def folded(
    hosts: Mapping[int, str], stacks: list[wire.Stack], ends: Mapping[int, int] | None = None
) -> list[str]:
    return lines(group(hosts, stacks, ends or {}), hosts, mark=True)


def two_hosts(num_ranks: int) -> dict[int, str]:
    return {rank: f"node{rank // (num_ranks // 2)}" for rank in range(num_ranks)}


def test_the_main_thread_of_several_as_faulthandler_writes_them() -> None:
    frames = main_thread(COLLECTIVE)
    assert frames[2] == Frame("step", "/job/train step.py", 212)
    assert place(frames) == "all_reduce train step.py:212"
    assert communicates(frames)


def test_without_a_header_the_last_thread_is_the_main_one() -> None:
    frames = main_thread(LOADER)
    assert place(frames) == "__next__ loader.py:88"
    assert not communicates(frames)


def test_what_py_spy_writes() -> None:
    frames = main_thread(PY_SPY)
    assert frames == (Frame("read_shard", "data (old).py", 5), Frame("<module>", "train.py", 3))
    assert place(frames) == "read_shard data (old).py:5"


@pytest.mark.parametrize("text", ["", "...", "Thread 0x1 (most recent call first):\n", "\udcff\n" * 3])
def test_no_frames(text: str) -> None:
    assert main_thread(text) == ()
    assert place(()) == ""


def test_equal_places_are_one_line_and_the_odd_ones_are_named() -> None:
    hosts = two_hosts(64)
    stacks = [stack(rank, LOADER if rank in (40, 41) else COLLECTIVE) for rank in range(64)]
    assert folded(hosts, stacks) == [
        "ranks 0-39,42-63 (node[0-1]) in all_reduce train step.py:212",
        "ranks 40-41 (node1) in __next__ loader.py:88, waiting  <- the odd ones",
    ]


def test_most_may_be_odd_where_one_communicates() -> None:
    stacks = [stack(0, COLLECTIVE), *(stack(rank, LOADER) for rank in (1, 2, 3))]
    assert [line.endswith("<- the odd ones") for line in folded(two_hosts(4), stacks)] == [True, False]


def test_who_is_stopped_has_ended_or_is_on_a_silent_host_is_odd() -> None:
    stacks = [stack(0, COLLECTIVE), stack(1, "", "T"), stack(2, COLLECTIVE, "D", "read of /data/x")]
    assert folded(two_hosts(6), stacks, {3: 0}) == [
        "ranks 4-5 (node1) on a host that does not answer  <- the odd ones",
        "rank 0 (node0) in all_reduce train step.py:212",
        "rank 1 (node0) stopped (SIGSTOP)  <- the odd ones",
        "rank 2 (node0) in uninterruptible sleep in all_reduce train step.py:212, read of /data/x"
        "  <- the odd ones",
        "rank 3 (node1) ended with code 0  <- the odd ones",
    ]


def test_alike_nobody_is_odd() -> None:
    assert folded(two_hosts(2), [stack(0, LOADER), stack(1, LOADER)]) == [
        "ranks 0-1 (node[0-1]) in __next__ loader.py:88, waiting"
    ]
    halves = group(two_hosts(2), [stack(0, LOADER), stack(1, PY_SPY)], {})
    assert [part.kind for part in halves] == [Kind.ELSEWHERE] * 2
    assert not any("odd" in line for line in lines(halves, two_hosts(2), mark=True))


def test_many_places_are_cut_and_the_odd_ones_kept() -> None:
    hosts = dict.fromkeys(range(40), "one")
    stacks = [stack(rank, LOADER.replace("88", str(rank))) for rank in range(38)]
    said = folded(hosts, [*stacks, stack(38, "", "T"), stack(39, "", "T")])
    assert said[0] == "ranks 38-39 stopped (SIGSTOP)  <- the odd ones"
    assert (len(said), said[-1]) == (9, "31 more at 31 other places")


def test_a_text_of_any_size_is_one_frame_with_its_end() -> None:
    long = stack(0, "\x01" * 100_000 + COLLECTIVE)
    frame = wire.encode_stack(long)
    assert len(frame) <= wire.MAX_LINE_BYTES
    sent = wire.decode(frame.rstrip(b"\n"))
    assert isinstance(sent, wire.Stack)
    assert place(main_thread(sent.text)) == "all_reduce train step.py:212"


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HookFolder:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return HookFolder("job.0")


def python(hook: HookFolder, *argv: str, pythonpath: str = "") -> str:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": pythonpath}
    env |= hook.environment(env)
    return subprocess.run([sys.executable, *argv], env=env, capture_output=True, text=True, check=True).stdout


SEEN = "import os, sys; print(os.environ.get('PYTHONPATH'), [p for p in sys.path if 'dslaunch-job' in p])"


def test_the_hook_is_not_seen_by_the_program(hook: HookFolder, tmp_path: Path) -> None:
    assert python(hook, "-c", SEEN) == "None []\n"
    assert python(hook, "-c", SEEN, pythonpath=f"/x:{tmp_path}") == f"/x:{tmp_path} []\n"


def test_the_users_own_sitecustomize_runs(hook: HookFolder, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine', __name__, __file__)\nname = 'x'")
    code = "import sitecustomize; print(sitecustomize.name)"
    said = python(hook, "-c", code, pythonpath=str(tmp_path))
    assert said == f"mine sitecustomize {tmp_path}/sitecustomize.py\nx\n"


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_who_does_not_look_is_left_alone(hook: HookFolder, flag: str) -> None:
    assert python(hook, flag, "-c", "print(1)") == "1\n"
    assert not list(Path(hook.path).glob("*.stack"))


def test_the_hook_folder_is_private(hook: HookFolder) -> None:
    assert Path(hook.path).stat().st_mode & 0o777 == 0o700


def test_what_dead_agents_left_is_removed(hook: HookFolder, tmp_path: Path) -> None:
    living, left, young, other = (
        tmp_path / f"dslaunch-{name}"
        for name in ("0" * 16 + ".1", "1" * 16 + ".0", "2" * 16 + ".0", "mine.0")
    )
    for folder in (left, young, other):
        folder.mkdir()
        (folder / "7.stack").touch()
    held = HookFolder(living.name.removeprefix("dslaunch-"))
    for folder in (living, left, other):
        os.utime(folder, (1, 1))
    HookFolder("3" * 16 + ".0")
    assert [folder.exists() for folder in (living, left, young, other)] == [True, False, True, True]
    assert held.path == str(living)


def test_a_blocked_read_by_the_kernel() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        while kernel_state(cat.pid).waits_in not in ("read of pipe", "pipe_read", "anon_pipe_read"):
            assert cat.poll() is None
        cat.send_signal(signal.SIGSTOP)
        while kernel_state(cat.pid).state != "T":
            assert cat.poll() is None
        cat.kill()
    assert kernel_state(cat.pid) == ("", "")


def test_a_failure_tells_where_the_others_were(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    result = run("--num_gpus=5", "--run_dir=run", PAYLOAD, "places", env={"NCCL_TEST_JOB": str(tmp_path)})
    assert result.returncode == 3, result.stderr
    said = result.stderr.partition("the others were:\n")[2].splitlines()
    said = [re.sub(r":\d+", ":N", line.removeprefix("dslaunch:     ")) for line in said]
    assert said == [
        f"rank 0 in _sleep payload.py:N, waits in {SLEEP}",
        "rank 1 in endless payload.py:N, running",
        "rank 2 in blocked payload.py:N, waits in read of pipe",
        "rank 3 stopped (SIGSTOP)",
        "dslaunch: ended because of it: ranks 0, 1, 2, 3",
    ]
    kept = (tmp_path / "run/census/end.txt").read_text()
    assert "in endless\n" in kept
    assert living("NCCL_TEST_JOB", str(tmp_path)) == []
