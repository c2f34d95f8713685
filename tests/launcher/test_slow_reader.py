"""Output when nobody reads as fast as ranks write: what is kept in files is whole all the same."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dslaunch.launcher import wire
from dslaunch.launcher.node_plan import NodePlan, RankPlan, plans_to_json

BACKLOG_BYTES = 1 << 16
NUM_LINES = 40_000
AGENT = f"""
from dslaunch.launcher.agent.link import Link
from dslaunch.launcher.agent.main import Agent
Agent(Link(0, 1, max_backlog_bytes={BACKLOG_BYTES}), 0).run(0, "job", "")
"""
RANK = f"""
import pathlib
for i in range({NUM_LINES}):
    print(str(i).ljust(99, "x"))
pathlib.Path("done").touch()
"""
SAYS_MUCH_AT_ITS_END = f"""
import os, signal
def end(*_):
    for i in range({NUM_LINES}):
        os.write(1, b"".ljust(100, b"y"))
    os._exit(3)
signal.signal(signal.SIGTERM, end)
while True:
    os.write(1, b"".ljust(100, b"x"))
"""
CONSOLE = """
from pathlib import Path
from dslaunch.launcher.console import Console
from dslaunch.launcher.rank_logs import RankLogs
from dslaunch.launcher.streams import Lines
console, logs = Console(max_backlog_bytes=10_000), RankLogs(Path("."), "rank{}.log".format)
for i in range(5000):
    line = str(i).ljust(99, "x").encode()
    logs.write(Lines(0, 0, 1, (line,), b""))
    console.write_lines(1, line + b"\\n")
logs.close()
Path("logged").touch()
console.close(None)
"""


class SlowLauncher:
    """An agent whose launcher reads nothing until it is told to."""

    def __init__(self, folder: Path, code: str, *, keeps_output: bool) -> None:
        rank = RankPlan(0, 0, 0, (sys.executable, "-c", code), {"MASTER_PORT": "1"})
        plan = NodePlan(
            job_id=f"slow{os.getpid()}",
            node_rank=0,
            host="here",
            cwd=str(folder),
            script="",
            defaults={},
            env={},
            expanded=(),
            bound_cores=None,
            stdin_rank=None,
            ranks=(rank,),
            grace_s=30.0,
            lease_s=60.0,
            hears_launcher=True,
            engine="auto",
            keeps_output=keeps_output,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", AGENT], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._decoder = wire.Decoder()
        self.tell(wire.encode_plans(plans_to_json([plan])))

    def tell(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def heard(self) -> list[wire.Message]:
        """All that the agent has to say, to its end."""
        assert self._process.stdout is not None
        messages = list(self._decoder.feed(self._process.stdout.read()))
        assert self._process.wait(30) == 0
        return messages

    def wait_until_held(self) -> None:
        """Until the rank writes no more, though it would."""
        pid = self._rank_pid()
        before, written = -1, 0
        while not before == written > BACKLOG_BYTES:
            time.sleep(0.2)
            before, written = written, int(Path(f"/proc/{pid}/io").read_text().split()[3])

    def _rank_pid(self) -> int:
        """The agent tells it early enough to be read before its stdout is full."""
        assert self._process.stdout is not None
        while True:
            for message in self._decoder.feed(self._process.stdout.readline()):
                if isinstance(message, wire.Started):
                    return message.pid

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


Slow = Callable[..., SlowLauncher]


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    with ExitStack() as stack:
        yield lambda code, **how: stack.enter_context(closing(SlowLauncher(tmp_path, code, **how)))


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lines_of(messages: list[wire.Message]) -> list[str]:
    return "".join(message.text for message in messages if isinstance(message, wire.Output)).splitlines()


def test_ranks_wait_where_what_they_write_is_kept(slow: Slow) -> None:
    launcher = slow(RANK, keeps_output=True)
    launcher.wait_until_held()
    heard = launcher.heard()
    assert lines_of(heard) == [str(i).ljust(99, "x") for i in range(NUM_LINES)]
    assert not any(isinstance(message, wire.Dropped) for message in heard)


def test_ranks_never_wait_where_it_is_only_shown(slow: Slow, tmp_path: Path) -> None:
    launcher = slow(RANK, keeps_output=False)
    wait_for(tmp_path / "done")
    heard = launcher.heard()
    dropped_bytes = sum(message.num_bytes for message in heard if isinstance(message, wire.Dropped))
    shown_bytes = sum(len(message.text) for message in heard if isinstance(message, wire.Output))
    assert dropped_bytes > 0
    assert dropped_bytes + shown_bytes == 100 * NUM_LINES


def test_a_rank_that_waits_can_end(slow: Slow) -> None:
    launcher = slow(SAYS_MUCH_AT_ITS_END, keeps_output=True)
    launcher.wait_until_held()
    launcher.tell(wire.encode(wire.Stop(signal.SIGTERM, 60.0, 0.0)))
    (exited,) = (message for message in launcher.heard() if isinstance(message, wire.Exited))
    assert exited.returncode == 3


def test_a_terminal_that_reads_nothing_leaves_log_files_whole(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CONSOLE], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        wait_for(tmp_path / "logged")
        wanted = [str(i).ljust(99, "x") for i in range(5000)]
        assert (tmp_path / "rank0.log").read_text().splitlines() == wanted
        shown, said = process.communicate(timeout=30)
    num_shown = shown.count(b"\n")
    assert 0 < num_shown < 5000
    counted = re.findall(rb"dslaunch: (\d+) lines were not shown", said)
    assert sum(map(int, counted)) == 5000 - num_shown
