"""A ProxyCommand: a shell command whose stdin and stdout are the connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from dslaunch.runner_backends.tail import Tail

END_TIMEOUT_S = 1.0


class Proxy:
    """A running ProxyCommand. What it says on stderr is kept for the error message."""

    def __init__(self, end: socket.socket, process: asyncio.subprocess.Process) -> None:
        self.socket = end
        self.stderr = Tail()
        self._process = process
        self._reaper = asyncio.create_task(self._drain())

    @classmethod
    async def open(cls, command: str) -> Proxy:
        """Start `command` as OpenSSH does, by `exec` in a shell. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", f"exec {command}"),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(ours, process)

    async def close(self) -> None:
        """End the command and wait for it."""
        self.socket.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        _, late = await asyncio.wait({self._reaper}, timeout=END_TIMEOUT_S)
        if late:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._reaper.cancel()
            await asyncio.wait({self._reaper})

    async def _drain(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(4096):
            self.stderr.feed(chunk)
        await self._process.wait()
