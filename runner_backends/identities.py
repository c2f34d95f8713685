"""The keys offered at login: those of the agent and those in files, in OpenSSH's order."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from dslaunch.runner_backends.ssh_config import HostConfig


@dataclass(slots=True)
class Offer:
    """The keys for one login, and what to say about them when it is refused."""

    keypairs: list[asyncssh.SSHKeyPair] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    """What each key is, and where it comes from."""
    skipped: list[str] = field(default_factory=list)
    """Key files that could not be used, and why."""


@dataclass(frozen=True, slots=True)
class _KeyFile:
    """What one IdentityFile holds: pairs to sign with, or at least a public key to find in the agent."""

    keypairs: tuple[asyncssh.SSHKeyPair, ...]
    public_data: bytes | None
    problem: str | None


class Identities:
    """Reads key files once each and holds one connection per agent, however many hosts are logged in to."""

    def __init__(self) -> None:
        self._files: dict[tuple[Path, tuple[Path, ...]], _KeyFile] = {}
        self._agents: dict[str, asyncssh.SSHAgentClient] = {}

    async def offer(self, config: HostConfig) -> Offer:
        """The agent's keys, those an IdentityFile names first (IdentitiesOnly: alone); then the files'."""
        offer = Offer()
        files = {path: self._file(path, config.certificate_files) for path in config.identity_files}
        named = {file.public_data for file in files.values() if file.public_data is not None}
        agent_keys = await self._agent_keys(config.agent_socket) if config.agent_socket else []
        held = {key.key_public_data for key in agent_keys}
        chosen = [key for key in agent_keys if key.key_public_data in named]
        if not config.identities_only:
            chosen += [key for key in agent_keys if key.key_public_data not in named]
        for key in chosen:
            offer.keypairs.append(key)
            offer.tried.append(f"{key.get_comment() or key.get_algorithm()} (agent)")
        for path, file in files.items():
            if file.public_data in held:
                continue
            # A pair remembers the signature algorithm of its login, so every login has its own.
            offer.keypairs += [copy.copy(pair) for pair in file.keypairs]
            if file.keypairs:
                offer.tried.append(f"{path} ({'default' if config.identities_are_default else 'ssh_config'})")
            elif file.problem is not None and not (config.identities_are_default and not path.exists()):
                offer.skipped.append(f"{path} ({file.problem})")
        return offer

    async def close(self) -> None:
        """Hang up on the agents."""
        for agent in self._agents.values():
            agent.close()
            await agent.wait_closed()
        self._agents.clear()

    async def _agent_keys(self, socket: str) -> list[asyncssh.SSHKeyPair]:
        try:
            agent = self._agents.get(socket)
            if agent is None:
                agent = self._agents[socket] = await asyncssh.connect_agent(socket)
            return list(await agent.get_keys())
        except (OSError, ValueError):
            return []

    def _file(self, path: Path, certificates: tuple[Path, ...]) -> _KeyFile:
        key = (path, certificates)
        if key not in self._files:
            self._files[key] = _read(path, [str(c) for c in certificates if c.exists()])
        return self._files[key]


def _read(path: Path, certificates: list[str]) -> _KeyFile:
    try:
        keypairs = tuple(asyncssh.load_keypairs([str(path)], certlist=certificates))
        return _KeyFile(keypairs, keypairs[0].key_public_data, None)
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
    except asyncssh.KeyImportError as error:
        problem = "needs a passphrase: ssh-add it" if "assphrase" in str(error) else "not a private key"
    except asyncssh.KeyEncryptionError:
        problem = "needs a passphrase: ssh-add it"
    return _KeyFile((), _public_data(path), problem)


def _public_data(path: Path) -> bytes | None:
    for candidate in (path.with_name(path.name + ".pub"), path):
        try:
            return asyncssh.read_public_key(str(candidate)).public_data
        except (OSError, asyncssh.KeyImportError):
            continue
    return None
