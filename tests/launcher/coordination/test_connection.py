"""One connection: whole lines however they are cut, bounds, and an end whatever the other side does."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from dslaunch.launcher.coordination.connection import Connection
from dslaunch.launcher.coordination.protocol import MAX_LINE_BYTES


class Recorder(Connection):
    """Keeps what came; `made` are those that stand."""

    def __init__(self, made: "list[Recorder]") -> None:
        super().__init__()
        self.lines: list[bytes] = []
        self.reasons: list[str] = []
        self._made = made

    def opened(self) -> None:
        self._made.append(self)

    def on_line(self, line: bytes) -> None:
        self.lines.append(line)

    def closed(self, reason: str) -> None:
        self.reasons.append(reason)


Talk = Callable[[Recorder, socket.socket], Awaitable[None]]


def talk(script: Talk) -> Recorder:
    """Connect a plain socket, do what the script says, and see the connection end."""

    async def run() -> Recorder:
        made: list[Recorder] = []
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Recorder(made), "127.0.0.1", 0)
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, server.sockets[0].getsockname())
            while not made:
                await asyncio.sleep(0)
            await script(made[0], sock)
        await asyncio.wait_for(made[0].gone, 10)
        server.close()
        await server.wait_closed()
        return made[0]

    return asyncio.run(run())


@pytest.mark.parametrize("size", [1, 3, 100])
def test_lines_are_whole_however_they_are_cut(size: int) -> None:
    async def script(_: Recorder, sock: socket.socket) -> None:
        data = b"one\n\nthree\n" + b"x" * 50 + b"\nrest"
        for start in range(0, len(data), size):
            await asyncio.get_running_loop().sock_sendall(sock, data[start : start + size])
            await asyncio.sleep(0)

    recorder = talk(script)
    assert recorder.lines == [b"one", b"", b"three", b"x" * 50]
    assert recorder.reasons == ["the connection was closed"]


@pytest.mark.parametrize("end", [b"", b"\n", b"\nmore\n"])
def test_a_line_too_long_ends_it(end: bytes) -> None:
    async def script(recorder: Recorder, sock: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(sock, b"ok\n" + b"x" * (MAX_LINE_BYTES + 1) + end)
        await recorder.gone

    recorder = talk(script)
    assert recorder.lines == [b"ok"]
    assert recorder.reasons == [f"it sent a line longer than {MAX_LINE_BYTES} bytes: b'{'x' * 40}'..."]


def test_the_longest_line_passes() -> None:
    async def script(_: Recorder, sock: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(sock, b"x" * MAX_LINE_BYTES + b"\n")

    assert talk(script).lines == [b"x" * MAX_LINE_BYTES]


def test_who_stays_after_the_end_is_cut_off() -> None:
    async def script(recorder: Recorder, sock: socket.socket) -> None:
        recorder.send(b"bye")
        recorder.finish(0.1)
        recorder.send(b"never")
        await asyncio.get_running_loop().sock_sendall(sock, b"more\n")
        await recorder.gone
        assert await asyncio.get_running_loop().sock_recv(sock, 100) == b"bye\n"

    assert talk(script).lines == []


def test_an_end_that_meets_a_reset_is_an_end() -> None:
    """The other side has reset the connection, and this one has not noticed yet."""

    async def script(recorder: Recorder, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        recorder.finish(5)
        recorder.finish(5)
        recorder.break_off("")

    assert len(talk(script).reasons) == 1
