"""Connections to hosts: by ssh_config, through jump hosts and proxies, a bounded number at a time."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from dslaunch.hostfile import Host
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.identities import Identities
from dslaunch.runner_backends.known_hosts import KnownHosts
from dslaunch.runner_backends.proxy import Proxy
from dslaunch.runner_backends.ssh_config import HostConfig, SshConfig, StrictHostKeyChecking
from dslaunch.runner_backends.ssh_errors import Failure, login_error
from dslaunch.runner_backends.ssh_login import Login

# A post-quantum exchange can take 70 ms of CPU a connection, these some 1 ms; and AES has its instructions.
FAST_KEX = "^curve25519-sha256,curve25519-sha256@libssh.org"
FAST_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"

JUMP = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@]+)@)?"
    r"(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^:@\[\]/]+))(?::(?P<port>\d{1,5}))?/?"
)


@dataclass(frozen=True, slots=True)
class Pacing:
    """How many logins at a time, when to try again, and when to take a silent host for dead."""

    num_connects: int = 64
    """Logins in progress at a time."""
    num_tries: int = 6
    """Logins to a host whose sshd hangs up before its banner, as MaxStartups makes it do."""
    retry_pause_s: float = 0.25
    """Before the second try; twice as long before each further one."""
    keepalive_s: float = 5.0
    """Between questions to a silent host, where ssh_config has no ServerAliveInterval."""
    keepalive_count: int = 3
    """Questions without an answer that end a connection, where ssh_config has no ServerAliveCountMax."""


@dataclass(frozen=True, slots=True)
class Link:
    """An open connection, and the proxy command that carries it if there is one."""

    connection: asyncssh.SSHClientConnection
    proxy: Proxy | None

    async def close(self) -> None:
        """Hang up, and wait until everything is released."""
        self.connection.close()
        await self.connection.wait_closed()
        if self.proxy is not None:
            await self.proxy.close()


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A jump host, and the connection to it."""

    name: str
    connection: asyncssh.SSHClientConnection


class Connector:
    """Opens connections. Those to jump hosts are shared by all hosts behind them."""

    def __init__(self, ssh_config: Path | None, connect_timeout_s: float, pacing: Pacing) -> None:
        self._config = SshConfig(ssh_config)
        self._connect_timeout_s = connect_timeout_s
        self._pacing = pacing
        self._slots = asyncio.Semaphore(pacing.num_connects)
        self._known_hosts = KnownHosts()
        self._identities = Identities()
        self._jumps: dict[tuple[Host, ...], asyncio.Task[Link]] = {}

    async def connect(self, host: Host) -> Link:
        """A new connection to `host`, logged in. Raises BackendError."""
        return await self._connect(host, ())

    async def close(self) -> None:
        """Close the jump hosts' connections and the agents'."""
        jumps, self._jumps = list(self._jumps.values()), {}
        for jump in jumps:
            jump.cancel()
        for link in await asyncio.gather(*jumps, return_exceptions=True):
            if isinstance(link, Link):
                await link.close()
        await self._identities.close()

    async def _connect(self, host: Host, behind: tuple[Host, ...], tunnel: Tunnel | None = None) -> Link:
        """`behind` are the hosts this one is a jump host for. A given tunnel replaces its ProxyJump."""
        config = self._config.lookup(host)
        via = () if tunnel is not None else self._jump_hosts(config, {h.name for h in (host, *behind)})
        for attempt in range(1, self._pacing.num_tries + 1):
            if via:
                tunnel = await self._jump(via, (host, *behind))
            async with self._slots:
                result = await self._attempt(config, host, tunnel)
            if isinstance(result, Link):
                return result
            has_lost_jump = bool(via) and tunnel is not None and tunnel.connection.is_closed()
            if attempt == self._pacing.num_tries or not (result.is_dropped_early or has_lost_jump):
                raise login_error(host, config, result, self._known_hosts)
            pause_s = self._pacing.retry_pause_s * 2 ** (attempt - 1)
            await asyncio.sleep(pause_s * random.uniform(0.7, 1.3))
        raise AssertionError("unreachable")

    async def _attempt(self, config: HostConfig, host: Host, tunnel: Tunnel | None) -> Link | Failure:
        offer = await self._identities.offer(config)
        login = Login(config, self._known_hosts, offer)
        timeout_s = config.connect_timeout_s or self._connect_timeout_s
        proxy = None
        try:
            if tunnel is None and config.proxy_command is not None:
                proxy = await Proxy.open(config.proxy_command)
            connecting = asyncssh.connect(
                host.name,
                config.port,
                config=list(self._config.files),
                tunnel=None if tunnel is None else tunnel.connection,
                sock=None if proxy is None else proxy.socket,
                **self._options(config, login),
            )
            return Link(await asyncio.wait_for(connecting, timeout_s), proxy)
        except (OSError, ValueError, asyncssh.Error, asyncio.TimeoutError) as error:
            if proxy is not None:
                await proxy.close()
            said = None if proxy is None else proxy.stderr.text()
            jump = None if tunnel is None else tunnel.name
            return Failure(error, login, offer, timeout_s, proxy_stderr=said, jump=jump)
        except BaseException:
            if proxy is not None:
                await proxy.close()
            raise

    def _options(self, config: HostConfig, login: Login) -> dict[str, object]:
        """What differs from asyncssh's own reading of ssh_config, from its defaults, or from OpenSSH's."""
        checks_host_key = config.strict_host_key_checking is not StrictHostKeyChecking.NO
        options: dict[str, object] = {
            "client_factory": lambda: login,
            "proxy_command": None,
            "known_hosts": login.trusted_keys if checks_host_key else None,
            "username": config.user,
            "client_keys": None,
            "password_auth": False,
            "kbdint_auth": False,
            "agent_forwarding": False,
            "x11_forwarding": False,
            "connect_timeout": None,
            "encoding": None,
        }
        if "KexAlgorithms" not in config.chooses:
            options["kex_algs"] = FAST_KEX
        if "Ciphers" not in config.chooses:
            options["encryption_algs"] = FAST_CIPHERS
        if "ServerAliveInterval" not in config.chooses:
            options["keepalive_interval"] = self._pacing.keepalive_s
        if "ServerAliveCountMax" not in config.chooses:
            options["keepalive_count_max"] = self._pacing.keepalive_count
        return options

    def _jump_hosts(self, config: HostConfig, names: set[str]) -> tuple[Host, ...]:
        """The hops on the way. A ProxyJump under `Host *` does not apply to the jump host itself."""
        if config.proxy_jump is None:
            return ()
        try:
            jumps = [parse_jump(spec.strip()) for spec in config.proxy_jump.split(",")]
        except ValueError as error:
            raise BackendError(
                config.alias, f"bad ProxyJump in ssh_config: {error}", "write it as [user@]host[:port],..."
            ) from error
        return tuple(jump for jump in jumps if jump.name not in names)

    async def _jump(self, via: tuple[Host, ...], behind: tuple[Host, ...]) -> Tunnel:
        """The connection to the last of `via`, opened once for all the hosts behind it."""
        task = self._jumps.get(via)
        if task is None or (task.done() and not _is_usable(task)):
            task = self._jumps[via] = asyncio.create_task(self._open_jump(via, behind))
        try:
            return Tunnel(via[-1].name, (await asyncio.shield(task)).connection)
        except BackendError as error:
            what = error.what if error.host == behind[0].name else f"jump host {error.host}: {error.what}"
            raise BackendError(behind[0].name, what, error.hint) from error

    async def _open_jump(self, via: tuple[Host, ...], behind: tuple[Host, ...]) -> Link:
        *earlier, last = via
        tunnel = await self._jump(tuple(earlier), (last, *behind)) if earlier else None
        return await self._connect(last, behind, tunnel)


def _is_usable(task: asyncio.Task[Link]) -> bool:
    return not task.cancelled() and task.exception() is None and not task.result().connection.is_closed()


def parse_jump(spec: str) -> Host:
    """One hop of a ProxyJump: `[user@]host[:port]`, IPv6 in brackets, or an ssh:// URI. Raises ValueError."""
    match = JUMP.fullmatch(spec)
    if match is None:
        raise ValueError(f"{spec!r} is not a jump host")
    port = None if match["port"] is None else int(match["port"])
    return Host(match["v6"] or match["name"], (), user=match["user"], port=port)
