"""What ssh_config says about a host.

Acted on here: HostName, Port, User, IdentityFile, IdentitiesOnly, IdentityAgent, CertificateFile,
ProxyJump, ProxyCommand, UserKnownHostsFile, GlobalKnownHostsFile, HostKeyAlias, HashKnownHosts,
StrictHostKeyChecking, ConnectTimeout.
Acted on by asyncssh, which is given the same files: Host, Match, Include, AddressFamily, BindAddress,
Ciphers, MACs, KexAlgorithms, HostKeyAlgorithms, CASignatureAlgorithms, Compression, SendEnv, SetEnv,
ServerAliveInterval, ServerAliveCountMax, TCPKeepAlive, RekeyLimit, PreferredAuthentications, GSSAPI.
Set aside on purpose: passwords, forwarding (agent, X11), RequestTTY, RemoteCommand.
Other options are ignored.
"""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import cast

from asyncssh.config import ConfigParseError, SSHClientConfig

from dslaunch.hostfile import Host
from dslaunch.runner_backends.errors import BackendError

SYSTEM_FILE = Path("/etc/ssh/ssh_config")
SYSTEM_KNOWN_HOSTS = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")


class StrictHostKeyChecking(Enum):
    """What to do about a host key that no known_hosts file vouches for."""

    YES = "yes"
    """Refuse it. `ask` is this too: a launch has nobody to ask."""
    ACCEPT_NEW = "accept-new"
    """Trust the first key of a host and write it down; refuse another one later."""
    NO = "no"
    """Take any key, and write nothing."""


STRICTNESS = {
    **dict.fromkeys(("yes", "true", "ask"), StrictHostKeyChecking.YES),
    **dict.fromkeys(("no", "false", "off"), StrictHostKeyChecking.NO),
    "accept-new": StrictHostKeyChecking.ACCEPT_NEW,
}


@dataclass(frozen=True, slots=True)
class HostConfig:
    """One host as ssh_config, with the hostfile's user and port before it, describes it."""

    alias: str
    file: Path | None
    """The one ssh_config file that is read, None for the usual two."""
    hostname: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    identities_are_default: bool
    """True where ssh_config names no IdentityFile: a missing file then is nothing to report."""
    certificate_files: tuple[Path, ...]
    identities_only: bool
    agent_socket: str | None
    proxy_jump: str | None
    proxy_command: str | None
    user_known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    host_key_alias: str | None
    strict_host_key_checking: StrictHostKeyChecking
    hash_known_hosts: bool
    connect_timeout_s: float | None
    chooses: frozenset[str]
    """Which of KexAlgorithms, Ciphers, ServerAliveInterval and ServerAliveCountMax ssh_config sets."""

    @property
    def known_hosts_name(self) -> str:
        """The name OpenSSH looks up in known_hosts: `[host]:port` off port 22, an alias always bare."""
        if self.host_key_alias is not None:
            return self.host_key_alias
        return self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"


class _Reader(SSHClientConfig):
    """asyncssh's reader, taught to keep the two options that it skips."""

    def _set_strictness(self, option: str, args: list[str]) -> None:
        value = args.pop(0)
        if value.lower() not in STRICTNESS:
            self._error(f"unsupported {option} value: {value}")
        self._options.setdefault(option, STRICTNESS[value.lower()])

    _handlers = {  # noqa: RUF012 (asyncssh's own table, extended)
        **SSHClientConfig._handlers,
        "stricthostkeychecking": ("StrictHostKeyChecking", _set_strictness),
        "hashknownhosts": ("HashKnownHosts", SSHClientConfig._set_bool),
    }


class SshConfig:
    """The ssh_config files of a backend: the one given, alone, or the user's and then the system's."""

    def __init__(self, path: Path | None = None) -> None:
        home = Path("~/.ssh/config").expanduser()
        candidates = [home, SYSTEM_FILE] if path is None else [path]
        self._given = path
        self.files = [f for f in candidates if path is not None or os.access(f, os.R_OK)]

    def lookup(self, host: Host) -> HostConfig:
        """What the files say about `host`. Raises BackendError for a file that cannot be read or parsed."""
        try:
            local_user = _local_user(host)
            options = self._read(host, local_user)
            return _host_config(host, self._given, options, local_user)
        except ConfigParseError as error:
            raise BackendError(
                host.name, f"bad ssh_config: {error}", f"correct that line; then try: ssh -G {host.name}"
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            path = getattr(error, "filename", None) or self.files[0]
            why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "not UTF-8 text"
            raise BackendError(
                host.name, f"cannot read ssh_config {path}: {why}", "name a file that exists and is readable"
            ) from error

    def _read(self, host: Host, local_user: str) -> _Reader:
        options = self._load(host, local_user, final=False)
        return self._load(host, local_user, final=True) if options.has_match_final() else options

    def _load(self, host: Host, local_user: str, *, final: bool) -> _Reader:
        unset = ()
        reader = _Reader.load(
            cast(SSHClientConfig, None),
            list(self.files),
            False,
            False,
            final,
            local_user,
            unset if host.user is None else host.user,
            host.name,
            unset if host.port is None else host.port,
        )
        return cast(_Reader, reader)


def _host_config(host: Host, file: Path | None, options: _Reader, local_user: str) -> HostConfig:
    home = Path("~/.ssh").expanduser()
    identity_files = _paths(options, "IdentityFile")
    user_known_hosts = _paths(options, "UserKnownHostsFile")
    global_known_hosts = _paths(options, "GlobalKnownHostsFile")
    tracked = ("KexAlgorithms", "Ciphers", "ServerAliveInterval", "ServerAliveCountMax")
    timeout = options.get("ConnectTimeout")
    return HostConfig(
        alias=host.name,
        file=file,
        hostname=_text(options, "Hostname") or host.name,
        port=cast(int, options.get("Port", 22)),
        user=_text(options, "User") or local_user,
        identity_files=tuple(home / k for k in DEFAULT_KEYS) if identity_files is None else identity_files,
        identities_are_default=identity_files is None,
        certificate_files=_paths(options, "CertificateFile") or (),
        identities_only=bool(options.get("IdentitiesOnly")),
        agent_socket=_agent_socket(options),
        proxy_jump=_text(options, "ProxyJump"),
        proxy_command=_text(options, "ProxyCommand"),
        user_known_hosts=(home / "known_hosts", home / "known_hosts2")
        if user_known_hosts is None
        else user_known_hosts,
        global_known_hosts=SYSTEM_KNOWN_HOSTS if global_known_hosts is None else global_known_hosts,
        host_key_alias=_text(options, "HostKeyAlias"),
        strict_host_key_checking=cast(
            StrictHostKeyChecking, options.get("StrictHostKeyChecking", StrictHostKeyChecking.YES)
        ),
        hash_known_hosts=bool(options.get("HashKnownHosts")),
        connect_timeout_s=float(cast(int, timeout)) if timeout else None,
        chooses=frozenset(name for name in tracked if options.get(name) is not None),
    )


def _local_user(host: Host) -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise BackendError(
            host.name,
            f"this machine has no name for user id {os.getuid()}",
            "set USER in the environment, as containers with arbitrary user ids must",
        ) from error


def _text(options: _Reader, name: str) -> str | None:
    value = options.get(name)
    return None if value is None else str(value)


def _paths(options: _Reader, name: str) -> tuple[Path, ...] | None:
    """The files an option names; None where it stands nowhere, nothing for `none`."""
    value = options.get(name)
    if value is None:
        return None
    home = str(Path("~").expanduser())
    names = [re.sub(r"%([d%])", lambda m: home if m[1] == "d" else "%", n) for n in cast("list[str]", value)]
    return tuple(Path(n).expanduser() for n in names)


def _agent_socket(options: _Reader) -> str | None:
    from_environment = os.environ.get("SSH_AUTH_SOCK") or None
    missing = object()
    value = options.get("IdentityAgent", missing)
    if value is missing or value == "SSH_AUTH_SOCK":
        return from_environment
    if value is None:
        return None
    name = str(value)
    if name.startswith("$"):
        return os.environ.get(name[1:].strip("{}")) or None
    return str(Path(name).expanduser())
