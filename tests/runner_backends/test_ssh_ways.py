"""Ways to a host: jump hosts and proxy commands, and which hop is blamed when one fails."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import NodeCommand
from dslaunch.runner_backends.embedded import EmbeddedHosts
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.ssh import SshBackend

if TYPE_CHECKING:
    from conftest import Dialer

# Joins stdin and stdout to a port, as `nc 127.0.0.1 PORT` would.
PIPE = """
import os, socket, sys, threading
far = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def up():
    while data := os.read(0, 65536):
        far.sendall(data)
threading.Thread(target=up, daemon=True).start()
while data := far.recv(65536):
    os.write(1, data)
"""


def test_a_jump_host_is_gone_through(dialer: Dialer) -> None:
    text = dialer.block(ProxyJump="worker-1") + dialer.block("worker-1")
    ran = dialer.run(text, "sh", "-c", "echo $SSH_CONNECTION")
    assert ran.stdout.split()[3] == str(dialer.hosts.port("worker-0")).encode()


def test_two_jump_hosts_in_a_row(dialer: Dialer) -> None:
    text = dialer.block(ProxyJump="worker-1,worker-2") + dialer.block("worker-1") + dialer.block("worker-2")
    assert dialer.run(text, "echo", "in").stdout == b"in\n"


def test_a_jump_host_behind_a_jump_host(dialer: Dialer) -> None:
    text = (
        dialer.block(ProxyJump="worker-1")
        + dialer.block("worker-1", ProxyJump="worker-2")
        + dialer.block("worker-2")
    )
    assert dialer.run(text, "echo", "in").stdout == b"in\n"


def test_a_jump_host_for_every_host_is_not_its_own(dialer: Dialer) -> None:
    text = dialer.block() + dialer.block("worker-1") + "Host *\n  ProxyJump worker-1\n"
    assert dialer.run(text, "echo", "in").stdout == b"in\n"


def test_proxy_jump_none(dialer: Dialer) -> None:
    text = dialer.block(ProxyJump="none") + "Host *\n  ProxyJump worker-1\n"
    assert dialer.run(text, "echo", "in").stdout == b"in\n"


def test_a_jump_host_that_refuses_is_named(dialer: Dialer, closed_port: int) -> None:
    text = dialer.block(ProxyJump="worker-1") + dialer.block("worker-1", Port=str(closed_port))
    assert dialer.refused(text) == (
        f"worker-0: jump host worker-1: connection refused by 127.0.0.1 port {closed_port}",
        "is sshd running there, and on that port? set Port in ssh_config, or the port in the hostfile",
    )


def test_the_second_jump_host_is_named(dialer: Dialer, closed_port: int) -> None:
    text = (
        dialer.block(ProxyJump="worker-1,worker-2")
        + dialer.block("worker-1")
        + dialer.block("worker-2", Port=str(closed_port))
    )
    what, hint = dialer.refused(text)
    assert what == (
        "worker-0: jump host worker-2: "
        f"jump host worker-1 cannot reach 127.0.0.1 port {closed_port}: connection refused"
    )
    assert hint == f"try it from there: ssh -F {dialer.config} worker-1 ssh -v -p {closed_port} 127.0.0.1"


def test_a_host_that_its_jump_host_cannot_reach(dialer: Dialer, closed_port: int) -> None:
    text = dialer.block(ProxyJump="worker-1", Port=str(closed_port)) + dialer.block("worker-1")
    assert dialer.refused(text) == (
        f"worker-0: jump host worker-1 cannot reach 127.0.0.1 port {closed_port}: connection refused",
        f"try it from there: ssh -F {dialer.config} worker-1 ssh -v -p {closed_port} 127.0.0.1",
    )


def test_an_unknown_key_behind_a_jump_host_cannot_be_scanned(dialer: Dialer) -> None:
    text = dialer.block(ProxyJump="worker-1", UserKnownHostsFile="none") + dialer.block("worker-1")
    _, hint = dialer.refused(text)
    assert hint == (
        "compare the fingerprint, then add it: "
        f"ssh -F {dialer.config} -o StrictHostKeyChecking=ask worker-0; "
        "or StrictHostKeyChecking accept-new in ssh_config"
    )


def test_a_jump_host_cannot_pass_for_the_host_behind_it(dialer: Dialer) -> None:
    # Both have the same address and port here, as hosts on port 22 behind one address would.
    key = dialer.hosts.known_hosts.read_text().splitlines()[0].split(" ", 1)[1]
    dialer.known_hosts.write_text(f"[127.0.0.1]:{dialer.hosts.port('worker-0')} {key}\n")
    text = dialer.block(
        HostName="localhost", ProxyJump="worker-1", UserKnownHostsFile=str(dialer.known_hosts)
    ) + dialer.block("worker-1")
    assert dialer.refused(text)[0].startswith("worker-0: host key unknown: ")


def test_a_bad_proxy_jump(dialer: Dialer) -> None:
    assert dialer.refused(dialer.block(ProxyJump="worker-1,a:b:c")) == (
        "worker-0: bad ProxyJump in ssh_config: 'a:b:c' is not a jump host",
        "write it as [user@]host[:port],...",
    )


def test_a_proxy_command_carries_the_connection(dialer: Dialer) -> None:
    # Through a shell, as in OpenSSH; what it says on stderr does not get into the connection.
    script = dialer.config.with_name("pipe.py")
    script.write_text(PIPE)
    command = f"sh -c 'echo noise >&2; exec $0 $1 $2' {sys.executable} $(echo {script}) %p"
    ran = dialer.run(dialer.block(ProxyCommand=command), "echo", "in")
    assert (ran.stdout, ran.end.returncode, ran.end.stderr) == (b"in\n", 0, "")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sh -c 'echo first >&2; echo no way >&2; exit 3'", "no way"),
        ("true", "it said nothing"),
    ],
)
def test_a_proxy_command_that_fails(dialer: Dialer, command: str, said: str) -> None:
    assert dialer.refused(dialer.block(ProxyCommand=command)) == (
        f"worker-0: ProxyCommand ended without a connection: {said}",
        f"run it by hand: {command}",
    )


def test_a_proxy_command_that_hangs(dialer: Dialer) -> None:
    text, _ = dialer.refused(dialer.block(ProxyCommand="cat > /dev/null"), connect_timeout_s=0.2)
    assert text.endswith("accepts the connection but sent no SSH banner within 0.2 s")


def test_a_host_that_goes_down_ends_its_sessions(dialer: Dialer) -> None:
    async def main() -> None:
        async with EmbeddedHosts(dialer.config.parent / "two", 2) as hosts:
            backend = SshBackend(hosts.ssh_config)
            first, second = [
                await backend.start(NodeCommand(Host(name, (0,)), ("cat",), b"")) for name in hosts.names
            ]
            await hosts.stop("worker-0")
            end = await asyncio.wait_for(first.wait(), 10)
            assert (end.returncode, end.stderr) == (None, "connection lost\n")
            second.close_stdin()
            assert (await second.wait()).returncode == 0
            await hosts.start("worker-0")
            third = await backend.start(NodeCommand(Host("worker-0", (0,)), ("true",), b""))
            assert (await third.wait()).returncode == 0
            await backend.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("argv", "what", "hint"),
    [
        (
            ("echo", "a\0b"),
            "worker-0: cannot send the command: embedded null byte",
            "an argument holds a character that no command line can carry, such as NUL: remove it",
        ),
        (
            ("echo", "x" * 200_000),
            "worker-0: the command line is 200005 bytes, of 131071 that SSH can carry",
            "put the arguments in a file",
        ),
    ],
)
def test_a_command_that_cannot_be_sent(argv: tuple[str, ...], what: str, hint: str) -> None:
    with pytest.raises(BackendError) as caught:
        asyncio.run(SshBackend().start(NodeCommand(Host("worker-0", (0,)), argv, b"")))
    assert (str(caught.value), caught.value.hint) == (what, hint)
