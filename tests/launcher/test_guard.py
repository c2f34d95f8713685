"""What the guard of an agent says in its place, where nobody else would tell that it has ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dslaunch.runner_backends.farewell import FAREWELL

AGENT = """
import os, signal, sys
from dslaunch.launcher.agent.cgroup import RankCgroup
from dslaunch.launcher.agent.guard import Guard
node_id = f"guard{os.getpid()}.0"
guard = Guard(node_id, RankCgroup(node_id), int(sys.argv[1]) or None)
os.write(1, b'{"t":"out')
"""


@pytest.mark.parametrize(
    ("end", "farewell_fd", "expected"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 1, b"137"),
        ("raise SystemExit(3)", 1, b"3"),
        ("guard.dismiss()", 1, None),
        ("os.kill(os.getpid(), signal.SIGKILL)", 0, None),
    ],
)
def test_how_an_agent_has_ended(end: str, farewell_fd: int, expected: bytes | None) -> None:
    """Though it was in the middle of a frame."""
    said = subprocess.run(
        [sys.executable, "-c", AGENT + end, str(farewell_fd)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stdout=subprocess.PIPE,
        timeout=60,
    ).stdout
    found = FAREWELL.search(said)
    assert (found and found[1]) == expected
    assert said.startswith(b'{"t":"out')
