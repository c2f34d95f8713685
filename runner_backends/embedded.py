"""Several hosts inside this process, for demonstrations and tests that have neither root nor a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import asyncssh

from dslaunch.runner_backends.embedded_host import EmbeddedHost, user_name

T = TypeVar("T")


class EmbeddedHosts:
    """`worker-0` ... on 127.0.0.1, and in `directory` all that a client needs: throw-away keys (0600),
    `ssh_config`, `known_hosts`, `hostfile`. OpenSSH can use them too: `ssh -F directory/ssh_config worker-0`.

    A command line that is not UTF-8 is refused. Leaving the context takes the hosts down, and after
    `power_off_timeout_s` SIGKILLs the process groups of commands that ignore EOF; until then nothing does.
    """

    def __init__(
        self, directory: Path, num_hosts: int, *, num_slots: int = 2, power_off_timeout_s: float = 5.0
    ) -> None:
        self._power_off_timeout_s = power_off_timeout_s
        self._directory = directory.resolve()
        self._num_slots = num_slots
        self._client_key = asyncssh.generate_private_key("ssh-ed25519", "dslaunch embedded hosts")
        self._hosts = {
            name: EmbeddedHost(name, asyncssh.generate_private_key("ssh-ed25519"), self._client_key)
            for name in (f"worker-{i}" for i in range(num_hosts))
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts, in the hostfile's order."""
        return tuple(self._hosts)

    @property
    def ssh_config(self) -> Path:
        """The file to name by `ssh -F`, or to give to SshBackend."""
        return self._directory / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """The host keys, by port."""
        return self._directory / "known_hosts"

    @property
    def hostfile(self) -> Path:
        """The hosts and their slots."""
        return self._directory / "hostfile"

    @property
    def client_key(self) -> Path:
        """The private key that every host takes."""
        return self._directory / "id_ed25519"

    def port(self, name: str) -> int:
        """Where a host listens."""
        return self._hosts[name].port

    async def stop(self, name: str) -> None:
        """Take one host off the network: connections dropped, new ones refused."""
        await self._hosts[name].stop()

    async def start(self, name: str) -> None:
        """Bring a stopped host back, on the same port."""
        await self._hosts[name].start()

    async def __aenter__(self) -> EmbeddedHosts:
        for host in self._hosts.values():
            await host.start()
        self._write_files()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(host.power_off(self._power_off_timeout_s) for host in self._hosts.values()))

    def _write_files(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(self.client_key, self._client_key.export_private_key(), 0o600)
        _write(self.client_key.with_suffix(".pub"), self._client_key.export_public_key(), 0o644)
        keys = [
            f"[127.0.0.1]:{host.port} {host.host_key.export_public_key().decode().strip()}\n"
            for host in self._hosts.values()
        ]
        _write(self.known_hosts, "".join(keys).encode(), 0o600)
        blocks = [self._ssh_config_block(host) for host in self._hosts.values()]
        _write(self.ssh_config, "".join(blocks).encode(), 0o600)
        lines = [f"{name} slots={self._num_slots}\n" for name in self.names]
        _write(self.hostfile, "".join(lines).encode(), 0o644)

    def _ssh_config_block(self, host: EmbeddedHost) -> str:
        return (
            f"Host {host.name}\n"
            "    HostName 127.0.0.1\n"
            f"    Port {host.port}\n"
            f"    User {user_name()}\n"
            f'    IdentityFile "{self.client_key}"\n'
            "    IdentitiesOnly yes\n"
            f'    UserKnownHostsFile "{self.known_hosts}"\n'
            "    GlobalKnownHostsFile /dev/null\n"
            "    StrictHostKeyChecking yes\n"
        )


class HostsThread:
    """EmbeddedHosts in a thread with an event loop of its own, for code that blocks."""

    def __init__(self, hosts: EmbeddedHosts, loop: asyncio.AbstractEventLoop) -> None:
        self.hosts = hosts
        self._loop = loop

    def stop(self, name: str) -> None:
        """Take one host off the network."""
        self._call(self.hosts.stop(name))

    def start(self, name: str) -> None:
        """Bring a stopped host back, on the same port."""
        self._call(self.hosts.start(name))

    def _call(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextlib.contextmanager
def running_hosts(directory: Path, num_hosts: int, *, num_slots: int = 2) -> Iterator[HostsThread]:
    """EmbeddedHosts for a `with` block, served from a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="embedded hosts", daemon=True)
    thread.start()
    try:
        hosts = EmbeddedHosts(directory, num_hosts, num_slots=num_slots)
        served = HostsThread(hosts, loop)
        served._call(hosts.__aenter__())
        try:
            yield served
        finally:
            served._call(hosts.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _write(path: Path, data: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
