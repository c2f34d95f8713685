"""The network between: servers too busy to answer, links that die, and how many logins run at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import NodeCommand, Session
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.ssh import SshBackend
from dslaunch.runner_backends.ssh_connector import Pacing

if TYPE_CHECKING:
    from conftest import Dialer

WORKER_0 = Host("worker-0", (0,))


class Relay:
    """A port that leads to another, with a network in between that can be told to misbehave."""

    def __init__(self, target_port: int, num_drops: int) -> None:
        self._target_port = target_port
        self._num_drops = num_drops
        self._open: set[asyncio.StreamWriter] = set()
        self._is_frozen = False
        self._idle = asyncio.Event()
        self.num_connections = 0
        self.max_open = 0
        self.port = 0

    def freeze(self) -> None:
        """Carry nothing any more, and close nothing."""
        self._is_frozen = True

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._open:
            writer.transport.abort()

    async def close(self) -> None:
        """Reset every connection and wait until all are gone."""
        while self._open:
            self._idle.clear()
            self.cut()
            await self._idle.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        if self.num_connections <= self._num_drops:
            writer.close()
            return
        self._open.add(writer)
        self.max_open = max(self.max_open, len(self._open))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            flows = [
                asyncio.ensure_future(self._carry(reader, far_writer)),
                asyncio.ensure_future(self._carry(far_reader, writer)),
            ]
            await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
            writer.close()
            far_writer.close()
            await asyncio.wait(flows)
        finally:
            self._open.discard(writer)
            self._idle.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not self._is_frozen:
                    writer.write(data)
                    await writer.drain()


@contextlib.asynccontextmanager
async def relay(target_port: int, *, num_drops: int = 0) -> AsyncIterator[Relay]:
    served = Relay(target_port, num_drops)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        await served.close()


def through(dialer: Dialer, served: Relay, name: str = "worker-0") -> str:
    """A Host block that goes through a relay, and still knows the key of the host behind it."""
    known = f"[127.0.0.1]:{dialer.hosts.port(name)}"
    return dialer.block(name, Port=str(served.port), HostKeyAlias=known)


async def read_all(session: Session) -> bytes:
    return b"".join([chunk async for chunk in session.output()])


def test_a_server_that_hangs_up_is_tried_again(dialer: Dialer) -> None:
    async def main() -> None:
        async with relay(dialer.hosts.port("worker-0"), num_drops=3) as served:
            dialer.config.write_text(through(dialer, served))
            backend = SshBackend(dialer.config, pacing=Pacing(retry_pause_s=0.01))
            session = await backend.start(NodeCommand(WORKER_0, ("echo", "in"), b""))
            assert await read_all(session) == b"in\n"
            await backend.close()
            assert served.num_connections == 4

    asyncio.run(main())


def test_a_silent_link_ends_the_session(dialer: Dialer) -> None:
    async def main() -> None:
        async with relay(dialer.hosts.port("worker-0")) as served:
            dialer.config.write_text(through(dialer, served))
            backend = SshBackend(dialer.config, pacing=Pacing(keepalive_s=0.1, keepalive_count=2))
            session = await backend.start(NodeCommand(WORKER_0, ("sh", "-c", "echo up; cat"), b""))
            assert await anext(session.output()) == b"up\n"
            served.freeze()
            end = await asyncio.wait_for(session.wait(), 10)
            assert end.returncode is None
            assert end.stderr == "connection lost: server not responding to keepalive\n"
            await backend.close()

    asyncio.run(main())


def test_a_quiet_process_on_a_live_link_is_left_alone(dialer: Dialer) -> None:
    async def main() -> None:
        async with relay(dialer.hosts.port("worker-0")) as served:
            dialer.config.write_text(through(dialer, served))
            backend = SshBackend(dialer.config, pacing=Pacing(keepalive_s=0.05, keepalive_count=20))
            session = await backend.start(NodeCommand(WORKER_0, ("cat",), b""))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(session.wait(), 1.2)
            session.close_stdin()
            assert (await session.wait()).returncode == 0
            await backend.close()

    asyncio.run(main())


def test_a_reset_link_keeps_what_came_before(dialer: Dialer) -> None:
    async def main() -> None:
        async with relay(dialer.hosts.port("worker-0")) as served:
            dialer.config.write_text(through(dialer, served))
            backend = SshBackend(dialer.config)
            session = await backend.start(NodeCommand(WORKER_0, ("sh", "-c", "echo up; cat"), b"word\n"))
            output = session.output()
            data = b""
            while data != b"up\nword\n":
                data += await anext(output)
            served.cut()
            end = await asyncio.wait_for(session.wait(), 10)
            assert (end.returncode, end.stderr.startswith("connection lost")) == (None, True)
            session.write(b"nobody reads this")
            session.close_stdin()
            await backend.close()

    asyncio.run(main())


def test_only_so_many_logins_at_a_time(dialer: Dialer) -> None:
    async def main() -> None:
        async with relay(dialer.hosts.port("worker-0")) as served:
            served.freeze()
            dialer.config.write_text(through(dialer, served))
            backend = SshBackend(dialer.config, connect_timeout_s=0.1, pacing=Pacing(num_connects=2))
            command = NodeCommand(WORKER_0, ("true",), b"")
            results = await asyncio.gather(
                *(backend.start(command) for _ in range(6)), return_exceptions=True
            )
            assert [type(result) for result in results] == [BackendError] * 6
            assert (served.num_connections, served.max_open) == (6, 2)
            await backend.close()

    asyncio.run(main())


def test_one_connection_to_a_jump_host_serves_all_behind_it(dialer: Dialer) -> None:
    hosts = [WORKER_0, Host("worker-1", (0,))]

    async def main() -> None:
        async with relay(dialer.hosts.port("worker-2")) as served:
            dialer.config.write_text(
                dialer.block(ProxyJump="worker-2")
                + dialer.block("worker-1", ProxyJump="worker-2")
                + through(dialer, served, "worker-2")
            )
            backend = SshBackend(dialer.config)
            command = ("sh", "-c", "echo $SSH_CONNECTION")
            sessions = await asyncio.gather(
                *(backend.start(NodeCommand(host, command, b"")) for host in hosts * 4)
            )
            said = await asyncio.gather(*(read_all(session) for session in sessions))
            ports = {int(line.split()[3]) for line in said}
            assert ports == {dialer.hosts.port(host.name) for host in hosts}
            assert served.num_connections == 1
            served.cut()
            session = await backend.start(NodeCommand(WORKER_0, command, b""))
            assert (await session.wait()).returncode == 0
            assert served.num_connections == 2
            await backend.close()

    asyncio.run(main())


def test_giving_up_on_a_start_leaves_no_connection(dialer: Dialer) -> None:
    async def main() -> None:
        async with relay(dialer.hosts.port("worker-0")) as served:
            served.freeze()
            dialer.config.write_text(through(dialer, served))
            backend = SshBackend(dialer.config)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(backend.start(NodeCommand(WORKER_0, ("true",), b"")), 0.1)
            await asyncio.wait_for(backend.close(), 10)

    asyncio.run(main())
