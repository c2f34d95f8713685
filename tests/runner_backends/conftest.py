"""The lanes of the contract suite: ways to run a command for real, each on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import pwd
import selectors
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import Backend, NodeCommand, SessionEnd
from dslaunch.runner_backends.embedded import HostsThread, running_hosts
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.local import LocalBackend
from dslaunch.runner_backends.openssh import OpenSshBackend
from dslaunch.runner_backends.ssh import SshBackend
from dslaunch.runner_backends.ssh_connector import Pacing

SSHD = "/usr/sbin/sshd"
LIMIT_S = 60.0
WORKER_0 = Host("worker-0", (0,))


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    stdout: bytes
    end: SessionEnd


@dataclass(frozen=True)
class Lane:
    """One backend and a host that it reaches."""

    name: str
    make: Callable[[], Backend]
    host: Host
    carries_any_bytes: bool
    """False where the far end refuses command lines that are not UTF-8."""
    has_forking_shell: bool
    """True where a shell stands between the command and the host, and turns signals into 128+n."""
    tells_255: bool = True
    """False where a process that returns 255, or dies of a signal, looks like a lost link."""
    num_at_once: int = 24
    """How many commands one host takes at once: a backend that does not retry meets sshd's MaxStartups."""

    def command(self, *argv: str | bytes, stdin: bytes = b"") -> NodeCommand:
        return NodeCommand(self.host, tuple(os.fsdecode(word) for word in argv), stdin)

    def run(self, *argv: str | bytes, stdin: bytes = b"") -> Ran:
        """Run one command to its end, with EOF after its stdin."""

        async def main() -> Ran:
            backend = self.make()
            try:
                session = await backend.start(self.command(*argv, stdin=stdin))
                session.close_stdin()
                stdout = b"".join([chunk async for chunk in session.output()])
                return Ran(stdout, await session.wait())
            finally:
                await backend.close()

        return asyncio.run(asyncio.wait_for(main(), LIMIT_S))


@dataclass(frozen=True)
class Sshd:
    """A real sshd, and an ssh_config that reaches it as `sshd`."""

    directory: Path
    port: int

    @property
    def ssh_config(self) -> Path:
        return self.directory / "ssh_config"


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostsThread]:
    """Three embedded hosts that stay up; a test that stops one starts its own."""
    with running_hosts(tmp_path_factory.mktemp("embedded"), 3) as hosts:
        yield hosts


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """OpenSSH's server on a free port of 127.0.0.1, with throw-away keys."""
    if not os.access(SSHD, os.X_OK) or shutil.which("ssh-keygen") is None:
        pytest.skip("needs OpenSSH's sshd and ssh-keygen")
    directory = tmp_path_factory.mktemp("sshd")
    for name in ("host_key", "id_ed25519"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)], check=True
        )
    port = free_port()
    host_key = (directory / "host_key.pub").read_text()
    (directory / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    (directory / "ssh_config").write_text(
        f"Host sshd\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {directory}/id_ed25519\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {directory}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
    )
    # SHLVL keeps bash from reading ~/.bashrc for every command.
    (directory / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {directory}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {directory}/id_ed25519.pub\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
        "MaxAuthTries 2\nSetEnv SHLVL=1\nLogLevel ERROR\n"
        # OpenSSH's own first choice costs each client 70 ms of CPU.
        "KexAlgorithms curve25519-sha256\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(directory / "sshd_config")], stderr=log)
    try:
        if not listens(port, server):
            pytest.skip(f"sshd does not start here: {(directory / 'log').read_text().strip()}")
        yield Sshd(directory, port)
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="session", params=["local", "embedded", "sshd", "openssh"])
def lane(request: pytest.FixtureRequest) -> Lane:
    """Every way to run a command."""
    if request.param == "local":
        return Lane("local", LocalBackend, Host("localhost", (0,)), True, False)
    if request.param == "embedded":
        served: HostsThread = request.getfixturevalue("hosts")
        config = served.hosts.ssh_config
        return Lane("embedded", lambda: SshBackend(config), Host("worker-0", (0,)), False, True)
    server: Sshd = request.getfixturevalue("sshd")
    # bash replaces itself by the last command; another login shell may wait for it.
    is_bash = os.path.basename(pwd.getpwuid(os.getuid()).pw_shell) == "bash"
    if request.param == "openssh":
        make = partial(OpenSshBackend, server.ssh_config)
        return Lane("openssh", make, Host("sshd", (0,)), True, not is_bash, False, num_at_once=8)
    return Lane("sshd", lambda: SshBackend(server.ssh_config), Host("sshd", (0,)), True, not is_bash)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[], bytes]]:
    """A FIFO at tmp_path / "fifo"; calling the fixture reads all that one writer writes to it."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read() -> bytes:
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while selector.select(LIMIT_S):
                chunk = os.read(fd, 4096)
                if not chunk:
                    return data
                data += chunk
        raise TimeoutError("nobody wrote to the FIFO")

    yield read
    os.close(fd)


def free_port() -> int:
    """A port that nobody listens on."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def closed_port() -> int:
    """A port that nobody listens on."""
    return free_port()


def listens(port: int, server: subprocess.Popen[bytes]) -> bool:
    """Whether the server takes connections, before it ends and before the limit."""
    limit = time.monotonic() + 10
    while time.monotonic() < limit and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(0.02)
    return False


class Dialer:
    """Reaches `worker-0`, an embedded host, under an ssh_config made to order."""

    def __init__(self, hosts: HostsThread, directory: Path) -> None:
        self.hosts = hosts.hosts
        self.config = directory / "ssh_config"
        self.known_hosts = directory / "known_hosts"

    def block(self, name: str = "worker-0", **options: str | None) -> str:
        """A Host block for an embedded host; options replace the usual ones, None leaves one out."""
        usual: dict[str, str | None] = {
            "HostName": "127.0.0.1",
            "Port": str(self.hosts.port(name)),
            "User": getpass.getuser(),
            "IdentityFile": str(self.hosts.client_key),
            "IdentityAgent": "none",
            "UserKnownHostsFile": str(self.hosts.known_hosts),
            "GlobalKnownHostsFile": "none",
        }
        lines = [f"  {key} {value}\n" for key, value in (usual | options).items() if value is not None]
        return f"Host {name}\n{''.join(lines)}"

    def run(self, text: str, *argv: str, host: Host = WORKER_0) -> Ran:
        """Run a command under this ssh_config."""
        self.config.write_text(text)
        return Lane("dialer", lambda: SshBackend(self.config), host, False, True).run(*argv)

    def refused(
        self,
        text: str,
        *,
        host: Host = WORKER_0,
        connect_timeout_s: float = 10.0,
        pacing: Pacing | None = None,
    ) -> tuple[str, str]:
        """The error and the hint of a connection that does not come about under this ssh_config."""
        self.config.write_text(text)

        async def main() -> None:
            backend = SshBackend(self.config, connect_timeout_s=connect_timeout_s, pacing=pacing)
            try:
                await backend.start(NodeCommand(host, ("true",), b""))
            finally:
                await backend.close()

        with pytest.raises(BackendError) as caught:
            asyncio.run(asyncio.wait_for(main(), LIMIT_S))
        return str(caught.value), caught.value.hint


@pytest.fixture
def dialer(hosts: HostsThread, tmp_path: Path) -> Dialer:
    return Dialer(hosts, tmp_path)
