"""Hosts that cannot be reached, and what is said about each, word for word."""

from __future__ import annotations

import contextlib
import errno
import getpass
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from dslaunch.hostfile import Host
from dslaunch.runner_backends.identities import Offer
from dslaunch.runner_backends.known_hosts import KnownHosts
from dslaunch.runner_backends.ssh_config import SshConfig
from dslaunch.runner_backends.ssh_connector import Pacing
from dslaunch.runner_backends.ssh_errors import Failure, login_error
from dslaunch.runner_backends.ssh_login import Login

if TYPE_CHECKING:
    from conftest import Dialer

USER = getpass.getuser()


# Neither of these asks a name server: one is no name at all, one has no address of the family wanted.
@pytest.mark.parametrize(("name", "family"), [("no..such..host", "any"), ("::1", "inet")])
def test_unresolvable_name(dialer: Dialer, name: str, family: str) -> None:
    assert dialer.refused(dialer.block(HostName=name, AddressFamily=family)) == (
        f"worker-0: cannot resolve host name {name!r}",
        "check the hostfile's spelling, or give the address by HostName in ssh_config",
    )


def test_closed_port(dialer: Dialer, closed_port: int) -> None:
    assert dialer.refused(dialer.block(Port=str(closed_port))) == (
        f"worker-0: connection refused by 127.0.0.1 port {closed_port}",
        "is sshd running there, and on that port? set Port in ssh_config, or the port in the hostfile",
    )


def test_closed_port_of_a_name_with_two_addresses(dialer: Dialer, closed_port: int) -> None:
    text, _ = dialer.refused(dialer.block(HostName="localhost", Port=str(closed_port)))
    assert text == f"worker-0: connection refused by localhost port {closed_port}"


def test_the_port_of_the_hostfile_is_the_one_tried(dialer: Dialer, closed_port: int) -> None:
    host = Host("worker-0", (0,), port=closed_port)
    text, _ = dialer.refused(dialer.block(), host=host)
    assert text == f"worker-0: connection refused by 127.0.0.1 port {closed_port}"


@contextlib.contextmanager
def listener(answer: bytes | None = None) -> Iterator[int]:
    """A port whose connections get `answer` and are closed; None: nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while answer is not None:
                    client, _ = server.accept()
                    with client:
                        client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_port_that_says_nothing(dialer: Dialer) -> None:
    with listener() as port:
        assert dialer.refused(dialer.block(Port=str(port)), connect_timeout_s=0.2) == (
            f"worker-0: 127.0.0.1 port {port} accepts the connection but sent no SSH banner within 0.2 s",
            "the host hangs or is overloaded, or the port is not sshd's; ConnectTimeout waits longer",
        )


def test_connect_timeout_of_ssh_config_goes_first(dialer: Dialer) -> None:
    with listener() as port:
        text, _ = dialer.refused(dialer.block(Port=str(port), ConnectTimeout="1"), connect_timeout_s=30)
    assert text.endswith("within 1 s")


def test_a_port_that_does_not_answer(dialer: Dialer) -> None:
    # A listener that accepts nobody queues two; after that it drops packets, as a firewall does.
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = server.getsockname()[1]
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        assert dialer.refused(dialer.block(Port=str(port)), connect_timeout_s=0.3) == (
            f"worker-0: no answer from 127.0.0.1 port {port} within 0.3 s",
            "is the host up, and does a firewall drop the port? ConnectTimeout in ssh_config waits longer",
        )


def test_a_port_that_speaks_something_else(dialer: Dialer) -> None:
    with listener(b"HTTP/1.1 400 Bad Request\r\n" * 2000) as port:
        text, hint = dialer.refused(dialer.block(Port=str(port)))
    assert text.startswith(f"worker-0: 127.0.0.1 port {port} does not speak SSH: ")
    assert hint == "is that the right port? set it by Port in ssh_config, or in the hostfile"


def test_a_server_that_hangs_up_too_often(dialer: Dialer) -> None:
    with listener(b"") as port:
        pacing = Pacing(retry_pause_s=0.001)
        assert dialer.refused(dialer.block(Port=str(port)), pacing=pacing) == (
            f"worker-0: 127.0.0.1 port {port} closed every connection before its SSH banner",
            "its sshd may have too many logins (MaxStartups), or refuse this address: look at its log",
        )


@pytest.mark.parametrize(
    ("number", "what", "hint"),
    [
        (
            errno.EHOSTUNREACH,
            "worker-0: no route to h port 2222",
            "check its address, this machine's routes, and firewalls",
        ),
        (
            errno.ETIMEDOUT,
            "worker-0: no answer from h port 2222",
            "is the host up, and does a firewall drop the port?",
        ),
        (
            errno.EADDRNOTAVAIL,
            "worker-0: cannot connect to h port 2222: cannot assign requested address",
            f"try: ssh -F CONFIG -v -p 2222 {USER}@worker-0 true",
        ),
    ],
)
def test_what_loopback_cannot_show(dialer: Dialer, number: int, what: str, hint: str) -> None:
    dialer.config.write_text("HostName h\nPort 2222\n")
    host = Host("worker-0", (0,))
    config = SshConfig(dialer.config).lookup(host)
    login = Login(config, KnownHosts(), Offer())
    failure = Failure(OSError(number, "text"), login, Offer(), 10.0, None)
    error = login_error(host, config, failure, KnownHosts())
    assert (str(error), error.hint) == (what, hint.replace("CONFIG", str(dialer.config)))
