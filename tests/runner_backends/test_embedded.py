"""The embedded hosts, seen by clients that are not ours."""

from __future__ import annotations

import asyncio
import os
import pwd
import select
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko
import pytest

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import NodeCommand
from dslaunch.runner_backends.embedded import EmbeddedHosts, HostsThread, running_hosts
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.ssh import SshBackend

if TYPE_CHECKING:
    from conftest import Dialer


@pytest.fixture
def client(hosts: HostsThread) -> Iterator[paramiko.SSHClient]:
    """paramiko, logged in to worker-0."""
    with paramiko.SSHClient() as client:
        client.load_host_keys(str(hosts.hosts.known_hosts))
        client.connect(
            "127.0.0.1",
            hosts.hosts.port("worker-0"),
            key_filename=str(hosts.hosts.client_key),
            allow_agent=False,
            look_for_keys=False,
        )
        yield client


def channel_of(client: paramiko.SSHClient, command: str) -> paramiko.Channel:
    transport = client.get_transport()
    assert transport is not None
    channel = transport.open_session()
    channel.settimeout(30)
    channel.exec_command(command)
    return channel


def read_all(channel: paramiko.Channel) -> bytes:
    data = b""
    while chunk := channel.recv(1 << 20):
        data += chunk
    return data


def test_bytes_of_any_kind_pass(client: paramiko.SSHClient) -> None:
    data = bytes(range(256)) * 1000
    channel = channel_of(client, "cat")
    channel.sendall(data)
    channel.shutdown_write()
    assert read_all(channel) == data
    assert channel.recv_exit_status() == 0


def test_stdout_stderr_and_status_are_kept_apart(client: paramiko.SSHClient) -> None:
    channel = channel_of(client, "echo out; echo err >&2; exit 7")
    assert channel.recv_exit_status() == 7
    assert (channel.recv(100), channel.recv_stderr(100)) == (b"out\n", b"err\n")


def test_the_environment_is_that_of_a_login(hosts: HostsThread, client: paramiko.SSHClient) -> None:
    lines = read_all(channel_of(client, "env; pwd")).decode().splitlines()
    user = pwd.getpwuid(os.getuid())
    found = dict(line.split("=", 1) for line in lines[:-1])
    assert set(found) - {"PWD", "OLDPWD", "_", "SHLVL"} == {
        "HOME",
        "LANG",
        "PATH",
        "SHELL",
        "SSH_CONNECTION",
        "USER",
    }
    assert (found["HOME"], found["USER"], found["SHELL"]) == (user.pw_dir, user.pw_name, "/bin/sh")
    client_address, client_port, server_address, server_port = found["SSH_CONNECTION"].split()
    assert (client_address, server_address) == ("127.0.0.1", "127.0.0.1")
    assert int(server_port) == hosts.hosts.port("worker-0")
    transport = client.get_transport()
    assert transport is not None
    assert int(client_port) == transport.sock.getsockname()[1]


def test_commands_lead_sessions_of_their_own(client: paramiko.SSHClient) -> None:
    channel = channel_of(client, "echo $$; cat")
    pid = int(channel.recv(100))
    assert os.getsid(pid) == pid
    channel.shutdown_write()
    assert channel.recv_exit_status() == 0


@pytest.mark.parametrize("request_kind", ["shell", "pty"])
def test_only_commands_are_served(client: paramiko.SSHClient, request_kind: str) -> None:
    transport = client.get_transport()
    assert transport is not None
    channel = transport.open_session()
    with pytest.raises(paramiko.SSHException):
        channel.invoke_shell() if request_kind == "shell" else channel.get_pty()


def test_no_other_key_gets_in(hosts: HostsThread) -> None:
    with paramiko.SSHClient() as client:
        client.load_host_keys(str(hosts.hosts.known_hosts))
        with pytest.raises(paramiko.AuthenticationException):
            client.connect(
                "127.0.0.1",
                hosts.hosts.port("worker-0"),
                pkey=paramiko.ECDSAKey.generate(),
                allow_agent=False,
                look_for_keys=False,
            )


def test_a_command_line_that_is_not_utf8_is_refused(dialer: Dialer) -> None:
    host = Host("worker-0", (0,))

    async def main() -> None:
        backend = SshBackend(dialer.hosts.ssh_config)
        try:
            await backend.start(NodeCommand(host, ("echo", os.fsdecode(b"\xff")), b""))
        finally:
            await backend.close()

    with pytest.raises(BackendError) as caught:
        asyncio.run(main())
    assert str(caught.value) == (
        "worker-0: logged in, but the host refused to run a command: session request failed"
    )
    assert caught.value.hint == "look at its sshd log, at ForceCommand and MaxSessions"


def test_the_files_are_there_and_private(tmp_path: Path) -> None:
    with running_hosts(tmp_path / "hosts", 2, num_slots=4) as served:
        hosts = served.hosts
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "hosts").iterdir()}
        assert hosts.hostfile.read_text() == "worker-0 slots=4\nworker-1 slots=4\n"
        assert hosts.names == ("worker-0", "worker-1")
    assert modes == {
        "id_ed25519": 0o600,
        "id_ed25519.pub": 0o644,
        "known_hosts": 0o600,
        "ssh_config": 0o600,
        "hostfile": 0o644,
    }


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs OpenSSH's ssh")
def test_openssh_gets_in_by_the_ssh_config(hosts: HostsThread) -> None:
    ran = subprocess.run(
        ["ssh", "-o", "BatchMode=yes", "-F", str(hosts.hosts.ssh_config), "worker-1", "cat; kill -9 $$"],
        input=b"\x00\xff" * 1_000_000,
        capture_output=True,
        timeout=60,
    )
    assert ran.stdout == b"\x00\xff" * 1_000_000
    assert ran.returncode == 255  # how ssh reports a signal


def test_stopping_a_host_leaves_eof(tmp_path: Path, fifo: Callable[[], bytes]) -> None:
    with running_hosts(tmp_path / "hosts", 2) as served:
        command = f"echo up; cat; echo eof > {tmp_path}/fifo"
        arguments = ["ssh", "-o", "BatchMode=yes", "-F", str(served.hosts.ssh_config), "worker-0", command]
        with subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"up\n"
            served.stop("worker-0")
            assert fifo() == b"eof\n"
            assert client.wait(30) == 255


def test_a_process_that_ignores_eof_lives_until_its_host_goes_down(tmp_path: Path) -> None:
    async def main() -> None:
        async with EmbeddedHosts(tmp_path / "hosts", 1, power_off_timeout_s=0.1) as hosts:
            backend = SshBackend(hosts.ssh_config)
            command = ("sh", "-c", "trap '' PIPE HUP TERM; echo $$; while :; do read x; done 2>&-")
            session = await backend.start(NodeCommand(Host("worker-0", (0,)), command, b""))
            pid = int(await anext(session.output()))
            watch = os.pidfd_open(pid)
            session.kill()
            await session.wait()
            await hosts.stop("worker-0")
            assert not select.select([watch], [], [], 0)[0]
        assert select.select([watch], [], [], 10)[0]
        os.close(watch)

    asyncio.run(main())


def test_throughput_is_enough_for_logs(hosts: HostsThread) -> None:
    async def main() -> float:
        backend = SshBackend(hosts.hosts.ssh_config)
        command = NodeCommand(Host("worker-0", (0,)), ("head", "-c", "50000000", "/dev/zero"), b"")
        start = time.monotonic()
        session = await backend.start(command)
        assert sum([len(chunk) async for chunk in session.output()]) == 50_000_000
        seconds = time.monotonic() - start
        await backend.close()
        return seconds

    # Some 0.3 s on two idle cores; the bound is for busy ones.
    assert asyncio.run(main()) < 10


def test_signals_reach_the_report(client: paramiko.SSHClient) -> None:
    channel = channel_of(client, f"kill -{int(signal.SIGTERM)} $$")
    assert channel.recv_exit_status() == -1  # how paramiko reports a signal
