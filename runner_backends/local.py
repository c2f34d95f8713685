"""Commands on this machine, each a child process with three pipes."""

from __future__ import annotations

from dslaunch.runner_backends.child import Child, Children
from dslaunch.runner_backends.command import NodeCommand


class LocalBackend:
    """Runs every command on this machine, whatever its host is called, with our own environment."""

    name = "local"

    def __init__(self, *, close_timeout_s: float = 10.0) -> None:
        self._children = Children(close_timeout_s)

    async def start(self, command: NodeCommand) -> Child:
        """Run the command in a session of its own. Raises BackendError when the program cannot be run."""
        child = await self._children.start(Child, command.argv, command.host.name)
        child.write(command.stdin)
        return child

    async def close(self) -> None:
        """Send EOF to what still runs, and SIGKILL it when it has not ended after `close_timeout_s`."""
        await self._children.close()
