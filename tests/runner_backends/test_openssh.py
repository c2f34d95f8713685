"""The ssh program: its exact command line, and what is made of its failures."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import NodeCommand, SessionEnd
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.openssh import OpenSshBackend
from dslaunch.runner_backends.openssh_errors import explained

if TYPE_CHECKING:
    from conftest import Sshd

OURS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)


def test_the_command_line_of_a_plain_host() -> None:
    command = NodeCommand(Host("worker-0", (0,)), ("python3", "-c", "print('a b')"), b"")
    assert OpenSshBackend().tool_argv(command) == (
        *("ssh", *OURS, "--", "worker-0"),
        """python3 -c 'print('"'"'a b'"'"')'""",
    )


def test_the_command_line_with_everything() -> None:
    backend = OpenSshBackend(
        Path("/etc/site ssh/config"),
        launcher_args=("-o", "ConnectTimeout=60", "-J", "bastion"),
        connect_timeout_s=3,
    )
    command = NodeCommand(Host("::1", (0,), user="ada", port=2222), ("true",), b"")
    assert backend.tool_argv(command) == (
        *("ssh", "-o", "ConnectTimeout=60", "-J", "bastion"),
        *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=3"),
        *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
        *("-F", "/etc/site ssh/config", "-p", "2222", "-l", "ada", "--", "::1", "true"),
    )


def end_of(backend: OpenSshBackend, host: Host, *argv: str) -> SessionEnd:
    """How a command ended."""

    async def main() -> SessionEnd:
        try:
            session = await backend.start(NodeCommand(host, argv, b""))
            session.close_stdin()
            return await session.wait()
        finally:
            await backend.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_an_unknown_host(sshd: Sshd) -> None:
    end = end_of(OpenSshBackend(sshd.ssh_config), Host("no-such-host.invalid", (0,)), "true")
    assert end.returncode is None
    first, *_, last = end.stderr.splitlines()
    assert first.startswith("ssh: Could not resolve hostname no-such-host.invalid: ")
    assert last == "cannot resolve host name 'no-such-host.invalid'; check the hostfile's spelling"


def test_nobody_listens(sshd: Sshd, closed_port: int) -> None:
    end = end_of(OpenSshBackend(sshd.ssh_config), Host("127.0.0.1", (0,), port=closed_port), "true")
    assert end == SessionEnd(
        None,
        f"ssh: connect to host 127.0.0.1 port {closed_port}: Connection refused\n"
        "connection refused; is sshd running there, and on that port?",
    )


def test_a_host_that_hangs(sshd: Sshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        backend = OpenSshBackend(sshd.ssh_config, connect_timeout_s=1)
        end = end_of(backend, Host("127.0.0.1", (0,), port=silent.getsockname()[1]), "true")
    assert end.returncode is None
    assert end.stderr.splitlines()[-1] == "no answer; is the host up, and does a firewall drop the port?"


def test_no_login(sshd: Sshd) -> None:
    end = end_of(OpenSshBackend(sshd.ssh_config), Host("sshd", (0,), user="nobody-here"), "true")
    assert end.returncode is None
    assert end.stderr.splitlines()[-1].startswith("permission denied; put your key there")


def test_launcher_args_reach_ssh(sshd: Sshd) -> None:
    backend = OpenSshBackend(launcher_args=("-F", str(sshd.ssh_config), "-o", "LogLevel=QUIET"))
    assert end_of(backend, Host("sshd", (0,)), "sh", "-c", "exit 3").returncode == 3
    end = end_of(backend, Host("no-such-host.invalid", (0,)), "true")
    assert end == SessionEnd(None, "ssh failed without a word; try it by hand, with ssh -v")


@pytest.mark.parametrize(
    ("said", "last"),
    [
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\r\nHost key verification failed.\r\n",
            "host key changed; if the host was reinstalled, remove its old key with ssh-keygen -R",
        ),
        (
            "Host key verification failed.\r\n",
            "host key unknown; add it to known_hosts (ssh-keyscan), after comparing its fingerprint",
        ),
        (
            "Timeout, server worker-1 not responding.\r\n",
            "the link went silent for 15 s",
        ),
        (
            "ssh: connect to host w port 22: No route to host\r\n",
            "no route; check its address, this machine's routes, and firewalls",
        ),
        ("kex_exchange_identification: read: Connection reset by peer\n", "the host closed the connection"),
        ("something new\n", "something new"),
    ],
)
def test_the_last_line_names_the_cause(said: str, last: str) -> None:
    assert explained(said).splitlines()[-1] == last


def refused(argv: tuple[str, ...]) -> tuple[str, str]:
    with pytest.raises(BackendError) as caught:
        asyncio.run(OpenSshBackend().start(NodeCommand(Host("worker-0", (0,)), argv, b"")))
    return str(caught.value), caught.value.hint


def test_what_ssh_cannot_carry() -> None:
    remedy = "an argument holds a character that no command line can carry, such as NUL: remove it"
    assert refused(("a\0b",)) == ("worker-0: cannot send the command: it holds a NUL character", remedy)
    assert refused(("true", "x" * 131_072)) == (
        "worker-0: the command line is 131077 bytes, of 131071 that ssh can carry",
        "put the arguments in a file",
    )


def test_ssh_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert refused(("true",)) == (
        "ssh: not installed on this machine, or not on PATH",
        "on Debian and Ubuntu: apt-get install openssh-client; or take another --launcher",
    )
