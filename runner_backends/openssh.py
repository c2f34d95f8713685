"""Commands on other machines through the ssh program, for sites whose set-up only OpenSSH itself knows."""

from __future__ import annotations

from pathlib import Path

from dslaunch.runner_backends.child import Child, Children
from dslaunch.runner_backends.command import NodeCommand, SessionEnd
from dslaunch.runner_backends.openssh_errors import explained
from dslaunch.runner_backends.programs import find_tool
from dslaunch.runner_backends.shell_line import check_line, shell_line

# What ssh returns for its own failures: the way to the host, or the login, or the link later on.
SSH_FAILED = 255


class OpenSshSession(Child):
    """A running ssh. Its end with 255, or by a signal, is the link's, not the process's."""

    async def wait(self) -> SessionEnd:
        """The end; `returncode` is None where ssh failed, and the last line of `stderr` then says how."""
        end = await super().wait()
        assert end.returncode is not None
        if end.returncode < 0:
            return SessionEnd(None, end.stderr)
        return SessionEnd(None, explained(end.stderr)) if end.returncode == SSH_FAILED else end


class OpenSshBackend:
    """Runs every command through an ssh of its own, which never asks for a password.

    `ssh_config` names the one file ssh reads; `launcher_args` come before our own options, and so win.
    A process that ends with 255 looks like a lost link: ssh does not tell them apart.
    """

    name = "openssh"

    def __init__(
        self,
        ssh_config: Path | None = None,
        *,
        launcher_args: tuple[str, ...] = (),
        connect_timeout_s: int = 10,
        close_timeout_s: float = 10.0,
    ) -> None:
        self._ssh_config = ssh_config
        self._launcher_args = launcher_args
        self._connect_timeout_s = connect_timeout_s
        self._children = Children(close_timeout_s)

    def tool_argv(self, command: NodeCommand) -> tuple[str, ...]:
        """The exact command line of ssh, for the dry run. Pure."""
        host = command.host
        return (
            "ssh",
            *self._launcher_args,
            *("-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={self._connect_timeout_s}"),
            *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
            *(("-F", str(self._ssh_config)) if self._ssh_config else ()),
            *(("-p", str(host.port)) if host.port is not None else ()),
            *(("-l", host.user) if host.user is not None else ()),
            *("--", host.name, shell_line(command.argv)),
        )

    async def start(self, command: NodeCommand) -> OpenSshSession:
        """Start ssh. Raises BackendError where that is impossible; whether it gets there, its end tells."""
        find_tool("ssh")
        argv = self.tool_argv(command)
        check_line(argv[-1], "ssh", command.host.name)
        session = await self._children.start(OpenSshSession, argv, command.host.name)
        session.write(command.stdin)
        return session

    async def close(self) -> None:
        """Send EOF to what still runs, and end its ssh when that does not help."""
        await self._children.close()
