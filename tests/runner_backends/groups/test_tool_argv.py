"""The exact command line and variables of every tool, and what is refused before it runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import GroupBackend, GroupCommand
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.hydra import ImpiBackend, MpichBackend, MvapichBackend
from dslaunch.runner_backends.openmpi import OpenMpiBackend
from dslaunch.runner_backends.pdsh import PdshBackend
from dslaunch.runner_backends.slurm import SlurmBackend

HOSTS = (Host("worker-1", (0, 1)), Host("worker-0", (0, 1)))
CONFIG = Path("/etc/site/ssh_config")
SHELL = 'trap : HUP INT TERM; "$@"; echo "<dslaunch:ended $?>"; exec cat 3>&1 >/dev/null'


def command(*argv: str, hosts: tuple[Host, ...] = HOSTS) -> GroupCommand:
    return GroupCommand(hosts, argv or ("python3", "agent.py"), b"")


def refused(backend: GroupBackend, *argv: str, hosts: tuple[Host, ...] = HOSTS) -> tuple[str, str]:
    """The error and the hint of a group that is not started."""
    with pytest.raises(BackendError) as caught:
        asyncio.run(backend.start(command(*argv, hosts=hosts)))
    return str(caught.value), caught.value.hint


def test_pdsh() -> None:
    backend = PdshBackend(environment={})
    assert backend.tool_argv(command("python3", "-c", "print('100%')", "%n")) == (
        *("pdsh", "-S", "-f", "1024", "-w", "worker-1,worker-0"),
        """python3 -c 'print('"'"'100%%'"'"')' %n""",
    )
    assert backend.tool_environment(command()) == {
        "PDSH_RCMD_TYPE": "ssh",
        "PDSH_SSH_ARGS_APPEND": "-o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3",
    }


def test_pdsh_with_everything() -> None:
    given = {"PDSH_RCMD_TYPE": "exec", "PDSH_SSH_ARGS_APPEND": "-v -o LogLevel=ERROR"}
    backend = PdshBackend(CONFIG, launcher_args=("-x", "a b"), environment=given)
    hosts = (Host("w0.site", (0,), port=2222), Host("2001:db8::1", (0,), user="ada", port=2222))
    assert backend.tool_argv(command("true", hosts=hosts)) == (
        *("pdsh", "-S", "-f", "1024", "-w", "w0.site,exec:ada@2001:db8::1", "-x", "a b", "true"),
    )
    assert backend.tool_environment(command(hosts=hosts)) == {
        "PDSH_RCMD_TYPE": "exec",
        "PDSH_SSH_ARGS_APPEND": "-v -o LogLevel=ERROR -F /etc/site/ssh_config -p 2222 "
        "-o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3",
    }


def test_what_pdsh_cannot_do() -> None:
    ports = (Host("w0", (0,), port=22), Host("w1", (0,)))
    assert refused(PdshBackend(), hosts=ports) == (
        "pdsh: one SSH port for all hosts is possible, but they have 22, none",
        "set Port per host in ssh_config and leave it out of the hostfile; or --launcher ssh",
    )
    assert refused(PdshBackend(), hosts=(Host("w0", (0,)), Host("w0.site", (0,)))) == (
        "pdsh: leaves the domain out of its output, and then cannot tell w0, w0.site apart",
        "write every host with its domain, or --launcher ssh",
    )
    assert refused(PdshBackend(Path("/a b"))) == (
        "pdsh: cannot pass on a path with a blank or a %: '/a b'",
        "rename that ssh_config",
    )
    assert refused(PdshBackend(), "true", "x" * 131_072) == (
        "pdsh: the command line is 131077 bytes, of 131071 that pdsh can carry",
        "put the arguments in a file",
    )


def test_slurm() -> None:
    backend = SlurmBackend(launcher_args=("--partition=gpu", "--overlap"))
    assert backend.tool_argv(command("python3", ":", "b")) == (
        *("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"),
        *("--nodelist=worker-1,worker-0", "--distribution=arbitrary", "--label", "--input=all"),
        *("--export=ALL", "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none"),
        *("--partition=gpu", "--overlap"),
        *("sh", "-c", SHELL, "sh", "sh", "-c", "exec python3 : b"),
    )
    assert backend.tool_environment(command()) == {}


def test_openmpi() -> None:
    as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    last = (
        *("--host", "worker-1:1,worker-0:1", "-n", "2", "--map-by", "ppr:1:node", "--bind-to", "none"),
        *("--stdin", "all", "--mca", "btl", "^openib", "sh", "-c", SHELL, "sh", "python3", "agent.py"),
    )
    args = ("--mca", "btl", "^openib")
    old = OpenMpiBackend(CONFIG, launcher_args=args, major=4)
    assert old.tool_argv(command()) == (
        *("mpirun", *as_root, "--mca", "plm_rsh_args", "-F /etc/site/ssh_config"),
        *("--mca", "orte_abort_on_non_zero_status", "0", "--tag-output", *last),
    )
    new = OpenMpiBackend(CONFIG, launcher_args=args, major=5)
    assert new.tool_argv(command()) == (
        *("mpirun", *as_root, "--prtemca", "plm_ssh_args", "-F /etc/site/ssh_config"),
        *("--runtime-options", "error-nonzero-status=0", "--output", "tag", *last),
    )
    assert old.tool_environment(command()) == new.tool_environment(command()) == {}
    assert (old.has_stdin, old.passes_eof, new.has_stdin, new.passes_eof) == (True, True, False, False)


def test_openmpi_asks_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "--tag-output" not in OpenMpiBackend().tool_argv(command())
    assert "--tag-output" in OpenMpiBackend(program="no-such-mpirun").tool_argv(command())


@pytest.mark.parametrize("kind", [MpichBackend, MvapichBackend])
def test_mpich_and_mvapich(kind: type[MpichBackend]) -> None:
    backend = kind(CONFIG, launcher_args=("-iface", "eth0"))
    assert backend.tool_argv(command()) == (
        *("mpirun", "-n", "2", "-ppn", "1", "-hosts", "worker-1,worker-0"),
        *("-prepend-pattern", "<dslaunch:%r>", "-disable-auto-cleanup", "-iface", "eth0"),
        *("python3", "agent.py"),
    )
    assert backend.tool_environment(command()) == {"HYDRA_LAUNCHER_EXTRA_ARGS": "-F /etc/site/ssh_config"}


def test_impi() -> None:
    assert ImpiBackend().tool_argv(command()) == (
        *("mpirun", "-n", "2", "-ppn", "1", "-hosts", "worker-1,worker-0"),
        *("-prepend-pattern", "<dslaunch:%r>", "-s", "all"),
        *("sh", "-c", SHELL, "sh", "python3", "agent.py"),
    )
    assert ImpiBackend().tool_environment(command()) == {"I_MPI_PIN": "0"}
    assert ImpiBackend(CONFIG).tool_environment(command()) == {
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-F /etc/site/ssh_config",
        "I_MPI_PIN": "0",
    }


@pytest.mark.parametrize(
    ("backend", "what", "package"),
    [
        (PdshBackend(), "pdsh", "pdsh"),
        (SlurmBackend(), "srun", "slurm-client"),
        (OpenMpiBackend(), "mpirun", "openmpi-bin"),
        (MpichBackend(), "mpirun", "mpich"),
    ],
)
def test_a_tool_is_missing(
    backend: GroupBackend, what: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused(backend) == (
        f"{what}: not installed on this machine, or not on PATH",
        f"on Debian and Ubuntu: apt-get install {package}; or take another --launcher",
    )


def test_it_is_another_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'HYDRA build details:'\necho more\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert refused(OpenMpiBackend()) == (
        "openmpi: mpirun is not Open MPI's: it is HYDRA build details:",
        "put Open MPI's bin folder first in PATH, or take another --launcher",
    )
    with_user = (Host("w0", (0,), user="ada"),)
    assert refused(MpichBackend(), hosts=with_user) == (
        "mpich: takes no user, but w0 has one",
        "leave it out of the hostfile; where ssh is used, ssh_config can set it",
    )
    assert refused(MpichBackend(), hosts=(Host("::1", (0,)),)) == (
        "mpich: a host is an IPv6 address",
        "give it a name in /etc/hosts or DNS",
    )
    assert refused(MpichBackend(Path("/a b"))) == (
        "mpich: cannot pass on a path with a blank: '/a b'",
        "rename that ssh_config",
    )


def test_what_slurm_cannot_do() -> None:
    assert refused(SlurmBackend(), hosts=(Host("w0", (0,), port=2222),)) == (
        "slurm: takes no port, but w0 has one",
        "leave it out of the hostfile; where ssh is used, ssh_config can set it",
    )
    assert refused(SlurmBackend(), hosts=(Host("::1", (0,)),)) == (
        "slurm: a host is an IPv6 address",
        "name hosts as slurm.conf does",
    )
