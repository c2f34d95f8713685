"""`dslaunchctl` by its command line: hosts, help and errors, as whole texts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Run


HEAVY = {"torch", "asyncssh", "paramiko", "numpy", "rich", "asyncio", "yaml", "dslaunch.engine"}
HOSTS = "root@worker-0:2222 slots=2 python=/opt/venv/bin/python\nworker-1 slots=4\n10.0.0.10 slots=1\n"


@pytest.fixture(autouse=True)
def _hostfile(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(HOSTS)


def test_hosts_for_people(run: Run) -> None:
    ran = run("hosts", "-H", "hosts", "--exclude", "worker-1:0,2", "--ssh-port", "22022")
    assert ran.stdout == (
        "worker-0   slots 0,1  user=root  port=2222  python=/opt/venv/bin/python\n"
        "worker-1   slots 1,3  port=22022\n"
        "10.0.0.10  slots 0    port=22022\n"
        "3 hosts, 5 slots (hostfile hosts)\n"
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_hosts_for_programs(run: Run) -> None:
    ran = run("hosts", "--hostfile", "hosts", "--include", "worker-0:1,0", "--json")
    assert json.loads(ran.stdout) == {
        "origin": "hostfile hosts",
        "num_hosts": 1,
        "num_slots": 2,
        "hosts": [
            {
                "host": "worker-0",
                "slots": [1, 0],
                "user": "root",
                "port": 2222,
                "python": "/opt/venv/bin/python",
            }
        ],
    }


def test_hosts_of_an_allocation(run: Run) -> None:
    ran = run("hosts", env={"SLURM_JOB_NODELIST": "n[08-10]", "SLURM_GPUS_ON_NODE": "2"})
    assert (
        ran.stdout == "n08  slots 0,1\nn09  slots 0,1\nn10  slots 0,1\n3 hosts, 6 slots (slurm allocation)\n"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            (),
            "error: no command\nhint: dslaunchctl report, check, exec, ...; see dslaunchctl --help\n",
        ),
        (("exec",), "error: no command to run\nhint: dslaunchctl exec [OPTIONS] -- COMMAND [ARGS]...\n"),
        (("exec", "--"), "error: no command to run\nhint: dslaunchctl exec [OPTIONS] -- COMMAND [ARGS]...\n"),
        (("hosts", "--what"), "error: No such option '--what'\nhint: see dslaunchctl hosts --help\n"),
        (("what",), "error: No such command 'what'\nhint: see dslaunchctl --help\n"),
        (
            ("hosts", "-H", "none"),
            "error: no hostfile none\nhint: check --hostfile; without it this machine's devices are used\n",
        ),
        (
            ("exec", "-H", "hosts", "-i", "worker-9", "true"),
            "error: --include: unknown host 'worker-9'\nhint: did you mean worker-1 or worker-0?\n",
        ),
    ],
)
def test_errors(run: Run, argv: tuple[str, ...], message: str) -> None:
    ran = run(*argv)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", message)


def test_a_reader_that_has_seen_enough_is_no_error(environ: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("w[0-20000] slots=8\n")
    code = "import sys; from dslaunch.launcher.ctl.cli import main; sys.exit(main())"
    command = f"{sys.executable} -c '{code}' hosts -H hosts | head -1"
    ran = subprocess.run(command, shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("w0      slots 0,1,2,3,4,5,6,7\n", "")


@pytest.mark.parametrize(
    "argv", [("--help",), ("report", "--help"), ("hosts", "-h"), ("exec", "--help"), ("--version",)]
)
def test_help_loads_nothing_heavy(environ: Mapping[str, str], tmp_path: Path, argv: tuple[str, ...]) -> None:
    code = f"""
import sys
from dslaunch.launcher.ctl.cli import main
sys.argv = {["dslaunchctl", *argv]!r}
assert main() == 0
print("\\n".join(sys.modules), file=sys.stderr)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("dslaunchctl" if argv == ("--version",) else "Usage: dslaunchctl")
    assert not set(ran.stderr.splitlines()) & HEAVY


def test_hosts_loads_no_ssh_and_no_torch(environ: Mapping[str, str], tmp_path: Path) -> None:
    code = """
import sys
from dslaunch.launcher.ctl.cli import main
sys.argv = ["dslaunchctl", "hosts", "-H", "hosts"]
assert main() == 0
print("\\n".join(sys.modules), file=sys.stderr)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    assert not set(ran.stderr.splitlines()) & (HEAVY - {"yaml", "asyncio"})
