"""What is fuzzed: any bytes into a parser that strangers can reach, and what must hold whatever they are.

The first byte of the data chooses the mode, the second into what chunks the rest is cut.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import cast

from dslaunch.launcher import wire
from dslaunch.launcher.coordination import protocol
from dslaunch.launcher.coordination.attendance import LinkSettings
from dslaunch.launcher.coordination.auth import Direction, Seal, session_key
from dslaunch.launcher.coordination.facts import fact
from dslaunch.launcher.coordination.membership import step
from dslaunch.launcher.coordination.reception import Guest, Listener, Reception
from dslaunch.launcher.coordination.room import OWN, Arrived, Heard, Input, Left, Room, Rules, Send

_KEY = b"sixteen bytes at least"


def wire_stream(data: bytes) -> None:
    """The frames between launcher and agent: WireError, or messages that encode to what they came from."""
    decoder = wire.Decoder()
    try:
        for chunk in _chunks(data):
            for message in decoder.feed(chunk):
                frame = wire.encode(message)
                assert wire.encode(wire.decode(frame[:-1])) == frame
    except wire.WireError:
        return


def link_guest(data: bytes) -> None:
    """The coordination port: a stranger's bytes, with or without a job key, sealed or not, never raise.

    A room of three nodes hears what comes of them: everyone there gets at most one Begin, and one last word.
    """
    mode = data[0] % 3 if data else 0
    key = None if mode == 0 else _KEY
    room = _Room()
    settings = LinkSettings(
        host="pod-0",
        node_rank=0,
        host_names=("node-0", "node-1", "node-2"),
        facts=_FACTS,
        master_addr="127.0.0.1",
        port=1,
        job_id="job",
        key=key,
    )
    reception = Reception(settings, Listener(room.arrived, room.heard, room.left, _take_line))
    guest = reception.guest()
    transport = _Transport()
    guest.connection_made(cast(asyncio.BaseTransport, transport))
    sealed = _sealed(data[2:], transport.lines()[0]) if mode == 2 else data[2:]
    for chunk in _chunks(data[:2] + sealed):
        guest.data_received(chunk)
    _end(guest)
    room.check()


TARGETS: dict[str, Callable[[bytes], None]] = {"wire": wire_stream, "link": link_guest}
"""Each is called with a running event loop."""

_FACTS = (fact("world size", "8"),)


def _chunks(data: bytes) -> Iterator[bytes]:
    size = 1 + (data[1] if len(data) > 1 else 0) * 16
    return (data[i : i + size] for i in range(2, len(data), size))


def _sealed(data: bytes, challenge: bytes) -> bytes:
    """The same lines as a node that knows the key sends them, as far as there is a Hello among them."""
    seal: Seal | None = None
    lines = []
    for line in data.split(b"\n"):
        try:
            message = protocol.decode(line)
        except protocol.ProtocolError:
            message = None
        if isinstance(message, protocol.Hello) and seal is None:
            seal = Seal(session_key(_KEY, challenge, message.nonce), sends=Direction.UP)
        lines.append(line if seal is None or message is None else seal.seal(line))
    return b"\n".join(lines)


def _take_line(text: str) -> None:
    assert text.isprintable(), text


def _end(guest: Guest) -> None:
    guest.connection_lost(None)
    assert guest.gone.done()


class _Transport(asyncio.Transport):
    """Keeps what is written; closes at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})
        self._written = bytearray()
        self._is_closing = False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self._written += data

    def lines(self) -> list[bytes]:
        return bytes(self._written).splitlines()

    def write_eof(self) -> None:
        pass

    def abort(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing


class _Room:
    """The room of node 0, and what was sent to the one guest."""

    def __init__(self) -> None:
        rules = Rules(
            job_id="job",
            host_names=("node-0", "node-1", "node-2"),
            start_timeout_ns=10**9,
            lease_ns=10**9,
            settle_ns=10**9,
        )
        self._room = Room(rules, 0)
        self._sent: list[protocol.Down] = []
        self._now_ns = 0
        for peer in (OWN, 7):
            hello = protocol.Hello(protocol.PROTOCOL, "0" * 32, f"pod-{peer}", None, _FACTS)
            self._do(Arrived(peer, hello, 0))

    def _do(self, what: Input) -> None:
        self._room, outputs = step(self._room, what)
        self._sent += [output.message for output in outputs if isinstance(output, Send) and output.peer == 1]

    def arrived(self, peer: int, hello: protocol.Hello) -> None:
        self._do(Arrived(peer, hello, self._tick()))

    def heard(self, peer: int, message: protocol.Ended | protocol.Ping | protocol.Goodbye) -> None:
        self._do(Heard(peer, message, self._tick()))

    def left(self, peer: int, reason: str) -> None:
        self._do(Left(peer, reason, self._tick()))

    def _tick(self) -> int:
        self._now_ns += 1000
        return self._now_ns

    def check(self) -> None:
        for message in self._sent:
            assert protocol.decode(protocol.encode(message)) == message
        assert sum(isinstance(m, (protocol.Rejected, protocol.Settled)) for m in self._sent) <= 1
        assert sum(isinstance(message, protocol.Begin) for message in self._sent) <= 1
