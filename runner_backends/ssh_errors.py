"""Why a login failed, in words a user can act on."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from dslaunch.hostfile import Host
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.identities import Offer
from dslaunch.runner_backends.known_hosts import KnownHosts
from dslaunch.runner_backends.ssh_config import HostConfig
from dslaunch.runner_backends.ssh_login import Login

NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}
DROPPED = {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED}


@dataclass(frozen=True, slots=True)
class Failure:
    """A login that did not come about, with all that was seen of it."""

    error: Exception
    login: Login
    offer: Offer
    timeout_s: float
    proxy_stderr: str | None
    jump: str | None = None

    @property
    def errno(self) -> int | None:
        """The system's error number; asyncio hides it in the text where a name has several addresses."""
        if not isinstance(self.error, OSError) or isinstance(self.error, socket.gaierror):
            return None
        numbers = re.findall(r"\[Errno (\d+)\]", str(self.error))
        return self.error.errno or (int(numbers[-1]) if numbers else None)

    @property
    def is_dropped_early(self) -> bool:
        """Whether the server hung up before its banner, as an sshd does that has too many logins at once."""
        is_lost = isinstance(self.error, asyncssh.ConnectionLost) or self.errno in DROPPED
        return is_lost and self.login.is_connected and not self.login.saw_banner and self.proxy_stderr is None


def login_error(host: Host, config: HostConfig, failure: Failure, known_hosts: KnownHosts) -> BackendError:
    """The error to raise for a failed login."""
    match failure.error:
        case asyncio.TimeoutError() | TimeoutError() if failure.errno is None:
            what, hint = _timed_out(config, failure)
        case _ if failure.proxy_stderr is not None and not failure.login.saw_banner:
            said = failure.proxy_stderr.strip().splitlines()
            what = f"ProxyCommand ended without a connection: {said[-1] if said else 'it said nothing'}"
            hint = f"run it by hand: {config.proxy_command}"
        case asyncssh.HostKeyNotVerifiable():
            what, hint = _host_key(config, failure, known_hosts)
        case asyncssh.PermissionDenied():
            what, hint = _permission_denied(config, failure.offer)
        case asyncssh.KeyExchangeFailed() as error if "host key" in str(error):
            names = ", ".join(str(line.path) for line in known_hosts.lines(config)) or "ssh_config"
            what = f"{_endpoint(config)} has no host key of a type that {names} knows"
            hint = f"look at the keys it has now: {_keyscan(config)}"
        case asyncssh.KeyExchangeFailed() as error:
            what = f"no algorithm in common with {_endpoint(config)}: {str(error).split(',')[0].lower()}"
            hint = "name one that both sides have by KexAlgorithms, Ciphers or MACs in ssh_config"
        case asyncssh.ChannelOpenError() as error:
            number = re.search(r"\[Errno (\d+)\]", error.reason)
            reason = error.reason if number is None else os.strerror(int(number[1]))
            what = f"jump host {failure.jump} cannot reach {_endpoint(config)}: {reason.lower()}"
            hint = (
                "try it from there: "
                f"ssh {_file(config)}{failure.jump} ssh -v -p {config.port} {config.hostname}"
            )
        case _ if failure.is_dropped_early:
            what = f"{_endpoint(config)} closed every connection before its SSH banner"
            hint = "its sshd may have too many logins (MaxStartups), or refuse this address: look at its log"
        case asyncssh.DisconnectError() as error:
            what, hint = _disconnected(config, failure, error)
        case OSError() | ValueError() | asyncssh.Error() as error:
            what, hint = _unreachable(config, failure, error)
        case error:
            raise error
    return BackendError(host.name, what, hint)


def _endpoint(config: HostConfig) -> str:
    return f"{config.hostname} port {config.port}"


def _ssh(config: HostConfig) -> str:
    return f"ssh {_file(config)}-v -p {config.port} {config.user}@{config.alias} true"


def _file(config: HostConfig) -> str:
    return "" if config.file is None else f"-F {config.file} "


def _keyscan(config: HostConfig) -> str:
    return f"ssh-keyscan -p {config.port} {config.hostname}"


def _host_key(config: HostConfig, failure: Failure, known_hosts: KnownHosts) -> tuple[str, str]:
    if failure.login.known_hosts_problem is not None:
        problem = failure.login.known_hosts_problem
        path = config.user_known_hosts[0]
        return (
            f"cannot write its host key to {path}: {(problem.strerror or str(problem)).lower()}",
            "name a file that you may write by UserKnownHostsFile in ssh_config",
        )
    key = failure.login.refused_key
    if key is None:
        why = str(failure.error).split(" for host ")[0].lower()
        return f"host key refused: {why}", f"look at the key it shows: {_keyscan(config)}"
    shown = f"{key.get_algorithm()} {key.get_fingerprint()}"
    lines = known_hosts.lines(config)
    if lines:
        places = ", ".join(f"{line.path} line {line.number}" for line in lines)
        return (
            f"host key changed: it now shows {shown}, not what {places} holds",
            "someone may be listening in, or the host was reinstalled: if you know it was, "
            f"ssh-keygen -R '{config.known_hosts_name}' -f {lines[0].path}, and add the new key",
        )
    path = config.user_known_hosts[0] if config.user_known_hosts else Path("~/.ssh/known_hosts")
    if failure.jump is not None:
        add = f"ssh {_file(config)}-o StrictHostKeyChecking=ask {config.alias}"
    else:
        add = f"{_keyscan(config)} >> {path}"
    named = f" (looked up as {config.known_hosts_name})" if config.known_hosts_name != config.alias else ""
    return (
        f"host key unknown: {shown}{named}",
        f"compare the fingerprint, then add it: {add}; or StrictHostKeyChecking accept-new in ssh_config",
    )


def _permission_denied(config: HostConfig, offer: Offer) -> tuple[str, str]:
    tried = ", ".join(offer.tried) or "no key"
    skipped = f"; not usable: {', '.join(offer.skipped)}" if offer.skipped else ""
    what = f"permission denied for user {config.user} (tried {tried}{skipped})"
    if not offer.tried and not offer.skipped:
        agent = "the agent holds none" if config.agent_socket else "there is no agent (SSH_AUTH_SOCK)"
        return what, f"no key file was found and {agent}: make one with ssh-keygen, then ssh-copy-id it"
    if not offer.tried:
        return what, "ssh-add the key, or name another by IdentityFile in ssh_config"
    return (
        what,
        "put one of these keys there (passwords are never asked for): "
        f"ssh-copy-id {_file(config)}-p {config.port} {config.user}@{config.alias}",
    )


def _disconnected(config: HostConfig, failure: Failure, error: asyncssh.DisconnectError) -> tuple[str, str]:
    reason = error.reason.lower()
    if "too many authentication failures" in reason:
        return (
            f"too many keys were offered for user {config.user} ({', '.join(failure.offer.tried)})",
            "name the right one by IdentityFile, with IdentitiesOnly yes, in ssh_config",
        )
    if not failure.login.saw_banner:
        return (
            f"{_endpoint(config)} does not speak SSH: {reason}",
            "is that the right port? set it by Port in ssh_config, or in the hostfile",
        )
    return f"login failed: {reason}", f"see where it stops: {_ssh(config)}"


def _timed_out(config: HostConfig, failure: Failure) -> tuple[str, str]:
    limit = f"{failure.timeout_s:g} s"
    if not failure.login.is_connected:
        return (
            f"no answer from {_endpoint(config)} within {limit}",
            "is the host up, and does a firewall drop the port? ConnectTimeout in ssh_config waits longer",
        )
    if not failure.login.saw_banner:
        return (
            f"{_endpoint(config)} accepts the connection but sent no SSH banner within {limit}",
            "the host hangs or is overloaded, or the port is not sshd's; ConnectTimeout waits longer",
        )
    return (
        f"login to {_endpoint(config)} did not finish within {limit}",
        f"see where it stops: {_ssh(config)}; ConnectTimeout in ssh_config waits longer",
    )


def _unreachable(config: HostConfig, failure: Failure, error: Exception) -> tuple[str, str]:
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return (
            f"cannot resolve host name {config.hostname!r}",
            "check the hostfile's spelling, or give the address by HostName in ssh_config",
        )
    number = failure.errno
    if number == errno.ECONNREFUSED:
        return (
            f"connection refused by {_endpoint(config)}",
            "is sshd running there, and on that port? set Port in ssh_config, or the port in the hostfile",
        )
    if number in NO_ROUTE:
        return f"no route to {_endpoint(config)}", "check its address, this machine's routes, and firewalls"
    if number == errno.ETIMEDOUT:
        return (
            f"no answer from {_endpoint(config)}",
            "is the host up, and does a firewall drop the port?",
        )
    if failure.login.saw_banner:
        return f"login failed: {str(error).lower()}", f"see where it stops: {_ssh(config)}"
    if number is not None:
        return f"cannot connect to {_endpoint(config)}: {os.strerror(number).lower()}", f"try: {_ssh(config)}"
    return f"cannot connect to {_endpoint(config)}: {str(error).lower()}", f"try: {_ssh(config)}"
