"""Commands on other machines, over SSH."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path
from typing import cast

import asyncssh

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import NodeCommand
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.ssh_connector import Connector, Pacing
from dslaunch.runner_backends.ssh_session import SshSession

BAD_CHARACTER = "an argument holds a character that no command line can carry, such as NUL: remove it"

# The command line is one argument of the remote login shell, and Linux takes none longer than this.
MAX_COMMAND_BYTES = 128 * 1024 - 1

# As large as sshd sends them; fewer packets are less work for both ends.
PACKET_BYTES = 128 * 1024


class SshBackend:
    """Runs every command over a connection of its own, as ssh_config says, and never asks for a password.

    `ssh_config` names the one file to read; otherwise ~/.ssh/config and then /etc/ssh/ssh_config are read.
    `connect_timeout_s` is for connecting and logging in, each time, where ssh_config has no ConnectTimeout.
    """

    name = "ssh"

    def __init__(
        self,
        ssh_config: Path | None = None,
        *,
        connect_timeout_s: float = 10.0,
        pacing: Pacing | None = None,
    ) -> None:
        self._connector = Connector(ssh_config, connect_timeout_s, pacing or Pacing())
        self._sessions: set[SshSession] = set()
        self._closers: set[asyncio.Task[None]] = set()

    async def start(self, command: NodeCommand) -> SshSession:
        """Run the command through the host's login shell, quoted for any shell of the Bourne kind."""
        line = _command_line(command)
        link = await self._connector.connect(command.host)
        try:
            session = SshSession(link, self._release)
            await link.connection.create_session(
                lambda: session,
                cast(str, line),
                encoding=None,
                request_pty=False,
                max_pktsize=PACKET_BYTES,
            )
        except (asyncssh.Error, OSError) as error:
            is_lost = link.connection.is_closed()
            await link.close()
            raise _refused(command.host, error, is_lost) from error
        except asyncio.CancelledError:
            link.connection.abort()
            await link.close()
            raise
        self._sessions.add(session)
        session.write(command.stdin)
        return session

    async def close(self) -> None:
        """Close every connection. Processes that still run see EOF on their stdin."""
        for session in list(self._sessions):
            session.kill()
            await session.wait()
        if self._closers:
            await asyncio.wait(self._closers)
        await self._connector.close()

    def _release(self, session: SshSession) -> None:
        self._sessions.discard(session)
        closer = asyncio.create_task(session.link.close())
        self._closers.add(closer)
        closer.add_done_callback(self._closers.discard)


def _command_line(command: NodeCommand) -> bytes:
    try:
        line = os.fsencode(shlex.join(command.argv))
    except UnicodeEncodeError as error:
        raise BackendError(command.host.name, f"cannot send the command: {error}", BAD_CHARACTER) from error
    if b"\0" in line:
        what = "cannot send the command: embedded null byte"
        raise BackendError(command.host.name, what, BAD_CHARACTER)
    if len(line) > MAX_COMMAND_BYTES:
        raise BackendError(
            command.host.name,
            f"the command line is {len(line)} bytes, of {MAX_COMMAND_BYTES} that SSH can carry",
            "put the arguments in a file",
        )
    return line


def _refused(host: Host, error: asyncssh.Error | OSError, is_lost: bool) -> BackendError:
    if isinstance(error, asyncssh.ChannelOpenError) and not is_lost:
        what = f"logged in, but the host refused to run a command: {error.reason.lower()}"
        return BackendError(host.name, what, "look at its sshd log, at ForceCommand and MaxSessions")
    what = f"connection lost just after login: {str(error).lower()}"
    return BackendError(host.name, what, "look at its sshd log; a ForceCommand or a full disk can do this")
