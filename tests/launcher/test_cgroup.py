"""What has emptied its environment and changed its session is ended too: by descent, or by its cgroup."""

import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from dslaunch.launcher.agent.cgroup import RankCgroup, own_cgroup

Run = Callable[..., "subprocess.CompletedProcess[str]"]

ESCAPES = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["setsid", "sh", "-c", f"exec env -i sh -c 'sleep 120; : {sys.argv[-1]}'"])
while open(f"/proc/{child.pid}/environ", "rb").read():
    time.sleep(0.01)
if sys.argv[-2] == "agent":
    os.kill(os.getppid(), signal.SIGKILL)
"""


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def living(name: str) -> list[str]:
    """Command lines of processes that are called so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue  # ended meanwhile
        if name.encode() in command:
            found.append(command.decode())
    return found


def test_a_child_without_an_environment_does_not_outlive_the_job(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "escapes.py").write_text(ESCAPES)
    result = run("--num_gpus=1", "escapes.py", "well", name)
    assert result.returncode == 0, result.stderr
    assert living(name) == []


def test_nor_does_it_outlive_an_agent_that_is_killed(run: Run, tmp_path: Path, name: str) -> None:
    mine = RankCgroup(name)
    mine.remove()
    if not mine.path:
        pytest.skip("no cgroup with cgroup.kill can be made here")
    (tmp_path / "escapes.py").write_text(ESCAPES)
    assert run("--num_gpus=1", "escapes.py", "agent", name).returncode == 111
    assert living(name) == []


def test_no_cgroup_is_left(run: Run, tmp_path: Path) -> None:
    before = set(Path(own_cgroup() or "/nonexistent").glob("dslaunch-*"))
    (tmp_path / "ends.py").write_text("")
    assert run("--num_gpus=2", "ends.py").returncode == 0
    assert set(Path(own_cgroup() or "/nonexistent").glob("dslaunch-*")) <= before


@pytest.fixture(
    params=[
        ("0::/user.slice/s-3.scope\n", "/ /sys/fs/cgroup", "sys/fs/cgroup/user.slice/s-3.scope"),
        ("4:memory:/x\n0::/\n", "/ /sys/fs/cgroup/unified", "sys/fs/cgroup/unified/"),
        ("0::/docker/abc\n", "/docker/abc /sys/fs/cgroup", "sys/fs/cgroup/"),
        ("4:memory:/x\n", "/ /sys/fs/cgroup", ""),
        ("0::/x\n", "", ""),
    ],
    ids=["unified", "hybrid", "container", "version 1", "not mounted"],
)
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    cgroup, mount, expected = request.param
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(cgroup)
    line = (
        f"41 31 0:38 {mount} rw,relatime - cgroup2 cgroup2 rw\n" if mount else "1 0 0:1 / / rw - ext4 x rw\n"
    )
    (proc / "mountinfo").write_text(line)
    return tmp_path, expected


def test_the_own_cgroup_is_found_however_it_is_mounted(layout: tuple[Path, str]) -> None:
    root, expected = layout
    assert own_cgroup(str(root)) == (
        str(root / expected) + ("/" * expected.endswith("/")) if expected else ""
    )


def test_where_none_can_be_made_nothing_happens(tmp_path: Path) -> None:
    cgroup = RankCgroup("x", str(tmp_path))
    cgroup.enter()
    cgroup.kill()
    cgroup.remove()
    assert cgroup.path == ""
