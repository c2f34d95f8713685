"""One SSH server inside this process, and the commands it runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import signal

import asyncssh
from asyncssh.constants import EXTENDED_DATA_STDERR

from dslaunch.runner_backends.embedded_process import HostProcess

PACKET_BYTES = 128 * 1024


class EmbeddedHost:
    """An SSH server on a free port of 127.0.0.1 that takes one client key and runs commands by /bin/sh -c.

    A client that goes away, however abruptly, closes the pipes of its processes, as sshd does: they see
    EOF on stdin, and writing fails. Nothing kills them while the host is up.
    """

    def __init__(self, name: str, host_key: asyncssh.SSHKey, client_key: asyncssh.SSHKey) -> None:
        self.name = name
        self.host_key = host_key
        self._client_key = client_key
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._processes: set[HostProcess] = set()
        self.port = 0

    async def start(self) -> None:
        """Listen. The port is free for a restart after `stop`, and then the same."""
        authorized = asyncssh.import_authorized_keys(self._client_key.export_public_key().decode())
        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            self.port,
            config=None,
            reuse_address=True,
            server_factory=lambda: _Server(self._connections, self._processes),
            server_host_keys=[self.host_key],
            authorized_client_keys=authorized,
            password_auth=False,
            kbdint_auth=False,
            allow_pty=False,
            line_editor=False,
            encoding=None,
            max_pktsize=PACKET_BYTES,
        )
        self.port = self._acceptor.get_port()

    async def stop(self) -> None:
        """Refuse further connections and drop those that are open."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.wait_closed()
        await self._acceptor.wait_closed()
        self._acceptor = None

    async def power_off(self, timeout_s: float) -> None:
        """Stop; then SIGKILL the process groups of commands that have not ended after `timeout_s`."""
        await self.stop()
        if self._processes:
            await asyncio.wait(
                [asyncio.ensure_future(process.ended.wait()) for process in self._processes],
                timeout=timeout_s,
            )
        for process in list(self._processes):
            process.kill()
            await process.ended.wait()


class _Server(asyncssh.SSHServer):
    """What the server decides for one connection."""

    def __init__(self, connections: set[asyncssh.SSHServerConnection], processes: set[HostProcess]) -> None:
        self._connections = connections
        self._processes = processes
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._connections.discard(self._connection)

    def session_requested(self) -> asyncssh.SSHServerSession[bytes]:
        return _Session(self._processes)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        """Forward, so that a host can serve as a jump host."""
        return True


class _Session(asyncssh.SSHServerSession[bytes]):
    """One command: hands its bytes to and fro and reports its end."""

    def __init__(self, processes: set[HostProcess]) -> None:
        self._processes = processes
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._process: HostProcess | None = None
        self._early_stdin: list[bytes] = []
        self._has_early_eof = False
        self._command = ""

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def exec_requested(self, command: str) -> bool:
        self._command = command
        return True

    def session_started(self) -> None:
        assert self._channel is not None
        environment = _environment(self._channel)
        self._channel.get_connection().create_task(self._run(environment))

    async def _run(self, environment: dict[str, str]) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, process = await loop.subprocess_exec(
                lambda: HostProcess(self),
                *("/bin/sh", "-c", os.fsencode(self._command)),
                start_new_session=True,
                cwd=environment["HOME"] if os.path.isdir(environment["HOME"]) else "/",
                env=environment,
            )
        except (OSError, ValueError) as error:
            if self._channel is not None:
                self._channel.write(f"{error}\n".encode(), EXTENDED_DATA_STDERR)
                self._channel.exit(126)
            return
        self._process = process
        self._processes.add(process)
        process.on_exit = lambda: self._processes.discard(process)
        if self._channel is None:
            process.hang_up()
            return
        for data in self._early_stdin:
            process.write(data)
        self._early_stdin.clear()
        if self._has_early_eof:
            process.close_stdin()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._process is None:
            self._early_stdin.append(data)
        else:
            self._process.write(data)

    def eof_received(self) -> bool:
        self._has_early_eof = True
        if self._process is not None:
            self._process.close_stdin()
        return True

    def pause_writing(self) -> None:
        if self._process is not None:
            self._process.pause_output()

    def resume_writing(self) -> None:
        if self._process is not None:
            self._process.resume_output()

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel = None
        if self._process is not None:
            self._process.hang_up()

    # The process calls the rest.

    def output(self, fd: int, data: bytes) -> None:
        """Send what the process has written."""
        if self._channel is not None:
            with contextlib.suppress(BrokenPipeError):
                self._channel.write(data, EXTENDED_DATA_STDERR if fd == 2 else None)

    def hold_input(self, is_held: bool) -> None:
        """Stop or go on taking stdin from the client."""
        if self._channel is not None:
            if is_held:
                self._channel.pause_reading()
            else:
                self._channel.resume_reading()

    def exited(self, returncode: int) -> None:
        """Report how the process ended, and close the channel."""
        if self._channel is None:
            return
        if returncode < 0:
            self._channel.exit_with_signal(signal.Signals(-returncode).name.removeprefix("SIG"))
        else:
            self._channel.exit(returncode)


def _environment(channel: asyncssh.SSHServerChannel[bytes]) -> dict[str, str]:
    """What a login gives a command."""
    client = channel.get_extra_info("peername")
    server = channel.get_extra_info("sockname")
    return {
        "HOME": os.environ.get("HOME", "/"),
        "PATH": os.environ.get("PATH", os.defpath),
        "USER": user_name(),
        "SHELL": "/bin/sh",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "SSH_CONNECTION": f"{client[0]} {client[1]} {server[0]} {server[1]}",
    }


def user_name() -> str:
    """Who this process runs as; in a container its id may have no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"
