"""One attempt to log in: what asyncssh asks on the way, and what was seen."""

from __future__ import annotations

import asyncssh

from dslaunch.runner_backends.identities import Offer
from dslaunch.runner_backends.known_hosts import KnownHosts
from dslaunch.runner_backends.ssh_config import HostConfig, StrictHostKeyChecking


class Login(asyncssh.SSHClient):
    """Offers keys, judges the host's key, and remembers enough to say why a login failed."""

    def __init__(self, config: HostConfig, known_hosts: KnownHosts, offer: Offer) -> None:
        self._config = config
        self._known_hosts = known_hosts
        self._offer = offer
        self._has_offered = False
        self._connection: asyncssh.SSHClientConnection | None = None
        self.refused_key: asyncssh.SSHKey | None = None
        self.known_hosts_problem: OSError | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there was a connection to speak over."""
        return self._connection is not None

    @property
    def saw_banner(self) -> bool:
        """Whether the other end introduced itself as an SSH server."""
        return self._connection is not None and self._connection.get_extra_info("server_version") is not None

    def trusted_keys(self, host: str, addr: str, port: int | None) -> tuple[list[asyncssh.SSHKey], ...]:
        """The host's keys, CA keys and revoked keys, for asyncssh's `known_hosts`."""
        trusted = self._known_hosts.trusted(self._config)
        return list(trusted.host_keys), list(trusted.ca_keys), list(trusted.revoked_keys)

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Called for a key that `trusted_keys` does not hold."""
        trusted = self._known_hosts.trusted(self._config).host_keys
        if key in trusted:
            return True  # another login to the same host has written it down meanwhile
        accepts_new = self._config.strict_host_key_checking is StrictHostKeyChecking.ACCEPT_NEW
        if accepts_new and not trusted:
            try:
                self._known_hosts.add(self._config, key)
            except OSError as error:
                self.known_hosts_problem = error
            else:
                return True
        self.refused_key = key
        return False

    def public_key_auth_requested(self) -> list[asyncssh.SSHKeyPair] | None:
        """All keys at once; asyncssh asks again when they are used up, and then there are no more."""
        if self._has_offered:
            return None
        self._has_offered = True
        return self._offer.keypairs
