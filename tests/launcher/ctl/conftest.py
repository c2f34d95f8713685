"""Shared by the companions' tests: `dslaunchctl` as a process, and embedded hosts for it to reach."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from dslaunch.runner_backends.embedded import HostsThread, running_hosts

DSLAUNCHCTL = (
    sys.executable,
    "-c",
    "import sys; from dslaunch.launcher.ctl.cli import main; sys.exit(main())",
)


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostsThread]:
    """Four embedded hosts that stay up; a test that stops one starts its own."""
    with running_hosts(tmp_path_factory.mktemp("embedded"), 4) as hosts:
        yield hosts


Start = Callable[..., "subprocess.Popen[bytes]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Reach = Callable[[HostsThread], tuple[str, ...]]


@pytest.fixture
def start(tmp_path: Path, environ: Mapping[str, str]) -> Start:
    """Start `dslaunchctl` in an empty folder, in a session of its own, with pipes."""

    def start(*argv: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*DSLAUNCHCTL, *argv],
            cwd=tmp_path,
            env={**environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    return start


@pytest.fixture
def run(start: Start) -> Run:
    """Run `dslaunchctl` to its end."""

    def run(*argv: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        with start(*argv, env=env) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(argv, process.returncode, out.decode(), err.decode())

    return run


@pytest.fixture
def reach() -> Reach:
    """The options that lead to embedded hosts."""
    return lambda hosts: (f"--hostfile={hosts.hosts.hostfile}", f"--ssh_config={hosts.hosts.ssh_config}")
