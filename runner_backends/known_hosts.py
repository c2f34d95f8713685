"""The known_hosts files: which keys a host may show, and where they are written down."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from dslaunch.runner_backends.ssh_config import HostConfig


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """The keys that known_hosts files hold for one name."""

    host_keys: tuple[asyncssh.SSHKey, ...]
    ca_keys: tuple[asyncssh.SSHKey, ...]
    revoked_keys: tuple[asyncssh.SSHKey, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """Where a key stands."""

    path: Path
    number: int


class KnownHosts:
    """Reads each known_hosts file once, and again when it has changed. Lines it cannot parse are skipped."""

    def __init__(self) -> None:
        self._parsed: dict[Path, tuple[tuple[int, int], asyncssh.SSHKnownHosts]] = {}

    def trusted(self, config: HostConfig) -> TrustedKeys:
        """The keys to trust for a host: those of its known_hosts name, else those of its bare name.

        Addresses are not looked up: behind a jump host the address seen is the jump host's, which
        would then be able to pass for its targets.
        """
        keys = self._keys(config, config.known_hosts_name)
        if keys.host_keys or keys.ca_keys or config.host_key_alias is not None:
            return keys
        return self._keys(config, config.hostname)

    def lines(self, config: HostConfig) -> list[Line]:
        """Where a host's own keys stand, in the order the files are read."""
        found = []
        for path in (*config.user_known_hosts, *config.global_known_hosts):
            for number, text in enumerate(_read(path).splitlines(), start=1):
                if _parse(text).match(config.known_hosts_name, "", None)[0]:
                    found.append(Line(path, number))
        return found

    def add(self, config: HostConfig, key: asyncssh.SSHKey) -> None:
        """Append a host's key to its first user file (made 0600 if need be). Raises OSError."""
        if not config.user_known_hosts:
            return
        path = config.user_known_hosts[0]
        name = config.known_hosts_name
        if config.hash_known_hosts:
            name = _hashed(name)
        line = b" ".join([name.encode(), *key.export_public_key("openssh").split()[:2]]) + b"\n"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        present = _read(path)
        separator = b"\n" if present and not present.endswith("\n") else b""
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, separator + line)
        finally:
            os.close(fd)

    def _keys(self, config: HostConfig, name: str) -> TrustedKeys:
        host_keys: list[asyncssh.SSHKey] = []
        ca_keys: list[asyncssh.SSHKey] = []
        revoked_keys: list[asyncssh.SSHKey] = []
        for path in (*config.user_known_hosts, *config.global_known_hosts):
            found = self._file(path).match(name, "", None)
            host_keys += found[0]
            ca_keys += found[1]
            revoked_keys += found[2]
        return TrustedKeys(tuple(host_keys), tuple(ca_keys), tuple(revoked_keys))

    def _file(self, path: Path) -> asyncssh.SSHKnownHosts:
        try:
            status = path.stat()
        except OSError:
            return asyncssh.SSHKnownHosts()
        version = (status.st_mtime_ns, status.st_size)
        cached = self._parsed.get(path)
        if cached is None or cached[0] != version:
            cached = (version, _parse(_read(path)))
            self._parsed[path] = cached
        return cached[1]


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _parse(text: str) -> asyncssh.SSHKnownHosts:
    try:
        return asyncssh.import_known_hosts(text)
    except ValueError:
        return asyncssh.import_known_hosts("\n".join(line for line in text.splitlines() if _is_valid(line)))


def _is_valid(line: str) -> bool:
    try:
        asyncssh.import_known_hosts(line)
    except ValueError:
        return False
    return True


def _hashed(name: str) -> str:
    """A name as `HashKnownHosts yes` writes it: `|1|salt|HMAC-SHA1(salt, name)`."""
    salt = os.urandom(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
