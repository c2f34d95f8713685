"""Shared by the link's tests: settings of a node on the loopback, and a log."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from dslaunch.launcher.coordination.attendance import LinkSettings
from dslaunch.launcher.coordination.facts import fact

Settings = Callable[..., LinkSettings]
Meddle = Callable[[int, Callable[[bytes], bytes]], contextlib.AbstractAsyncContextManager[int]]


@pytest.fixture
def port() -> int:
    """One that is free on the IPv4 loopback."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        number: int = sock.getsockname()[1]
        return number


@pytest.fixture
def settings(port: int) -> Settings:
    """Of one node of a job on this machine; anything may be said otherwise."""

    def settings(node_rank: int | None, num_nodes: int = 3, **changes: object) -> LinkSettings:
        values: dict[str, object] = {
            "host": f"pod-{node_rank}",
            "node_rank": node_rank,
            "host_names": tuple(f"node-{i}" for i in range(num_nodes)),
            "facts": (fact("world size", "8"),),
            "master_addr": "127.0.0.1",
            "port": port,
            "job_id": f"job of {node_rank}",
            "key": None,
            "start_timeout_s": 20.0,
            "settle_s": 0.1,
            **changes,
        }
        return LinkSettings(**values)  # type: ignore[arg-type]

    return settings


@pytest.fixture
def meddle() -> Meddle:
    """Stand between two nodes: what each line from either side becomes."""
    return lambda target, change: Meddler(target, change).open()


class Meddler:
    """A man in the middle: does to each line on its way what he was made for."""

    def __init__(self, target: int, change: Callable[[bytes], bytes]) -> None:
        self._target = target
        self._change = change
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        """The port to call in the other one's place."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.create_task(self._carry(reader, writer)))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:
            writer.close()
            back.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(self._change(line))
        writer.write_eof()
