"""Bad peers change nothing: a job joins, runs and ends well beside each of them, and each is logged once."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from dslaunch.launcher.coordination.attendance import LinkSettings
from dslaunch.launcher.coordination.auth import Direction, Seal, session_key
from dslaunch.launcher.coordination.link import CoordinationError, Link, NodeEnd, Settled, coordination
from dslaunch.launcher.coordination.protocol import MAX_LINE_BYTES, Ended, Hello, Ping, encode

Settings = Callable[..., LinkSettings]
Meddle = Callable[[int, Callable[[bytes], bytes]], contextlib.AbstractAsyncContextManager[int]]
KEY = b"0123456789abcdef"
NONCE = "0" * 32


@dataclass
class Peer:
    """Anybody who can reach the coordination port."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    challenge: bytes = b""

    @staticmethod
    async def at(port: int) -> "Peer":
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
        peer.challenge = (await peer.reader.readline()).rstrip(b"\n")
        return peer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> bytes:
        """All that comes until the other side hangs up."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""

    async def go(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass
class Job:
    """Two nodes, whose lines are held; the second one may be reached through a man in the middle."""

    node0: Link
    member: Link
    log: list[str] = field(default_factory=list)
    port: int = 0

    async def ends_well(self) -> None:
        for link in (self.node0, self.member):
            link.report(NodeEnd(0))
        assert await self.node0.verdict() == await self.member.verdict() == Settled(None)


@contextlib.asynccontextmanager
async def job(settings: Settings, **changes: object) -> AsyncIterator[Job]:
    log: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        nodes = [settings(i, 2, **{"heartbeat_s": 0.05, "hello_timeout_s": 0.2, **changes}) for i in range(2)]
        links = [await stack.enter_async_context(coordination(node, log.append)) for node in nodes]
        await asyncio.gather(*(link.join() for link in links))
        log.clear()
        yield Job(links[0], links[1], log, nodes[0].port)


def run(test: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test, 30)

    asyncio.run(bounded())


def hello(**changes: object) -> bytes:
    values = {"protocol": 1, "nonce": NONCE, "host": "evil", "node_rank": 1, "facts": (), **changes}
    return encode(Hello(**values))  # type: ignore[arg-type]


STRANGE = {
    "http": (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "sent something else than a node does: b'GET / HTTP/1.1\\r'",
    ),
    "binary": (b"\x16\x03\x01\x00\n", "sent something else than a node does: b'\\x16\\x03\\x01\\x00'"),
    "no object": (b"[]\n", "sent something else than a node does: b'[]'"),
    "out of turn": (
        encode(Ping(1)) + b"\n",
        'sent something else than a node does: b\'{"t":"ping","sent_ns":1}\'',
    ),
    "oversized": (
        b"x" * (MAX_LINE_BYTES + 1),
        f"sent a line longer than {MAX_LINE_BYTES} bytes: b'{'x' * 40}'...",
    ),
    "oversized line": (
        b"x" * (3 * MAX_LINE_BYTES) + b"\n",
        f"sent a line longer than {MAX_LINE_BYTES} bytes: b'{'x' * 40}'...",
    ),
    "silent": (b"", "did not say who it is within 0.2 s"),
    "slow": (b"{", "did not say who it is within 0.2 s"),
    "no protocol of ours": (hello(protocol=2) + b"\n", "speaks protocol 2; it was refused"),
}


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("strange", STRANGE)
def test_strangers_change_nothing_and_are_logged_once(
    settings: Settings, strange: str, key: bytes | None
) -> None:
    data, text = STRANGE[strange]

    async def test() -> None:
        async with job(settings, key=key) as running:
            for _ in range(3):
                peer = await Peer.at(running.port)
                peer.say(data)
                await peer.answer()
                await peer.go()
            await running.ends_well()
        assert running.log == [f"coordination port: 127.0.0.1 {text}"]

    run(test())


def test_who_only_looks_whether_the_port_is_open_is_not_worth_a_line(settings: Settings) -> None:
    async def test() -> None:
        async with job(settings) as running:
            await (await Peer.at(running.port)).go()
            await running.ends_well()
        assert running.log == []

    run(test())


def test_what_is_said_after_the_last_word_is_not_kept(settings: Settings) -> None:
    async def test() -> None:
        async with job(settings) as running:
            peer = await Peer.at(running.port)
            peer.say(hello() + b"\n")
            answer = json.loads(await peer.reader.readline())
            assert answer["t"] == "rejected"
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    peer.say(b"x" * 100_000)
                    await peer.writer.drain()
            await peer.go()
            await running.ends_well()

    run(test())


def test_a_latecomer_changes_nothing(settings: Settings) -> None:
    async def test() -> None:
        async with job(settings) as running:
            peer = await Peer.at(running.port)
            peer.say(hello() + b"\n" + encode(Ended(1, None, ())) + b"\n")
            answer = json.loads(await peer.answer())
            assert answer["what"] == "the job of pod-0 already runs with all its nodes"
            await peer.go()
            await running.ends_well()

    run(test())


@pytest.mark.parametrize("joining", [True, False])
def test_a_flood_keeps_no_node_out(settings: Settings, joining: bool) -> None:
    """More connections than are ever held, which say nothing; the hello deadline is far away."""
    log: list[str] = []

    async def test() -> None:
        patient = {"hello_timeout_s": 20.0, "num_nodes": 2}
        async with (
            coordination(settings(0, **patient), log.append) as node0,  # type: ignore[arg-type]
            coordination(settings(1, **patient), lambda text: None) as member,  # type: ignore[arg-type]
        ):
            if not joining:
                await asyncio.gather(node0.join(), member.join())
            strangers = [await Peer.at(settings(0).port) for _ in range(150)]
            if joining:
                await asyncio.gather(node0.join(), member.join())
            await Job(node0, member).ends_well()
            for stranger in strangers:
                await stranger.go()

    run(test())
    text = "too many connections at once to the coordination port: the oldest were closed"
    assert [line for line in log if "joined" not in line] == [text]


# -- with a job key


async def refusal(settings: LinkSettings) -> tuple[str, str]:
    async with coordination(settings, lambda text: None) as link:
        try:
            await link.join()
        except CoordinationError as error:
            return error.what, error.hint
    raise AssertionError("it joined")


SAME_KEY = "give every node the same DSLAUNCH_JOB_KEY or --job_key_file"


@pytest.mark.parametrize(
    ("own", "others", "what", "logged"),
    [
        (
            KEY,
            KEY + b"!",
            "the job key here is not that of pod-0 (node 0)",
            "has another job key; it was refused",
        ),
        (
            KEY,
            None,
            "127.0.0.1 port {port} (node 0) has a job key, and this node has none",
            "did not join: has no job key",
        ),
        (
            None,
            KEY,
            "this node has a job key, and 127.0.0.1 port {port} (node 0) has none",
            "did not join: wants a job key, and there is none here",
        ),
    ],
    ids=["another key", "no key", "a key too many"],
)
def test_keys_that_differ_are_an_error_there_and_a_line_here(
    settings: Settings, own: bytes | None, others: bytes | None, what: str, logged: str
) -> None:
    log: list[str] = []

    async def test() -> None:
        async with coordination(settings(0, 2, key=own), log.append) as node0:
            for _ in range(2):
                answer = await refusal(settings(1, 2, key=others))
                assert answer == (what.format(port=settings(0).port), SAME_KEY)
            assert log == [f"coordination port: 127.0.0.1 {logged}"]
            async with coordination(settings(1, 2, key=own), lambda text: None) as member:
                await asyncio.gather(node0.join(), member.join())
                await Job(node0, member).ends_well()

    run(test())


def test_an_unsealed_hello_is_refused_where_there_is_a_key(settings: Settings) -> None:
    async def test() -> None:
        async with job(settings, key=KEY) as running:
            peer = await Peer.at(running.port)
            peer.say(hello() + b"\n")
            assert json.loads(await peer.answer())["hint"] == SAME_KEY
            await peer.go()
            await running.ends_well()
        assert running.log == ["coordination port: 127.0.0.1 has no job key; it was refused"]

    run(test())


def test_a_recorded_hello_is_worth_nothing(settings: Settings) -> None:
    async def test() -> None:
        async with job(settings, key=KEY) as running:
            first = await Peer.at(running.port)
            line = Seal(session_key(KEY, first.challenge, NONCE), sends=Direction.UP).seal(hello())
            await first.go()
            second = await Peer.at(running.port)
            second.say(line + b"\n")
            assert (
                json.loads(await second.answer())["what"] == "the job key here is not that of pod-0 (node 0)"
            )
            await second.go()
            await running.ends_well()
        assert running.log == ["coordination port: 127.0.0.1 has another job key; it was refused"]

    run(test())


def is_sealed(line: bytes) -> bool:
    return line.startswith(b'{"mac"') and b'"t":"hello"' not in line and b'"t":"welcome"' not in line


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line + line if is_sealed(line) else line,
        lambda line: encode(Ended(1, None, ())) + b"\n" + line if is_sealed(line) else line,
        lambda line: b"garbage\n" + line if is_sealed(line) else line,
    ],
    ids=["replayed", "injected", "garbage"],
)
def test_what_is_slipped_into_a_sealed_stream_is_ignored(
    settings: Settings, meddle: Meddle, change: Callable[[bytes], bytes]
) -> None:
    log: list[str] = []
    ports: list[int] = []

    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            quick = {"key": KEY, "heartbeat_s": 0.02, "num_nodes": 2}
            node0 = await stack.enter_async_context(coordination(settings(0, **quick), log.append))  # type: ignore[arg-type]
            port = await stack.enter_async_context(meddle(settings(0).port, change))
            ports.append(port)
            through = settings(1, port=port, **quick)  # type: ignore[arg-type]
            member = await stack.enter_async_context(coordination(through, log.append))
            await asyncio.gather(node0.join(), member.join())
            await asyncio.sleep(0.2)
            await Job(node0, member).ends_well()

    run(test())
    text = "sent a frame that its seal does not fit; it was ignored"
    assert sorted(line.partition(text)[0] for line in log) == sorted(
        ["coordination port: 127.0.0.1 ", log[0].partition(text)[0], f"127.0.0.1 port {ports[0]} "]
    )
    assert log[0] == "pod-1 joined (2 of 2 nodes)"


def test_a_man_in_the_middle_cannot_talk_the_key_away(settings: Settings, meddle: Meddle) -> None:
    """He tells the member that node 0 has no key, and would go on in the clear."""

    async def test() -> None:
        def change(line: bytes) -> bytes:
            return line.replace(b'"keyed":true', b'"keyed":false')

        async with (
            coordination(settings(0, 2, key=KEY), lambda text: None),
            meddle(settings(0).port, change) as port,
        ):
            what, _ = await refusal(settings(1, 2, key=KEY, port=port))
            assert what == f"this node has a job key, and 127.0.0.1 port {port} (node 0) has none"

    run(test())


@pytest.mark.parametrize(
    ("old", "new"), [(b'"node_rank":1', b'"node_rank":2'), (b'"job_id":"job of 0"', b'"job_id":"job of 9"')]
)
def test_what_is_changed_on_the_way_is_noticed(
    settings: Settings, meddle: Meddle, old: bytes, new: bytes
) -> None:
    async def test() -> None:
        async with (
            coordination(settings(0, 3, key=KEY), lambda text: None),
            meddle(settings(0).port, lambda line: line.replace(old, new)) as port,
        ):
            _, hint = await refusal(settings(1, 3, key=KEY, port=port))
            assert hint == SAME_KEY

    run(test())


# -- what a member may call


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "b'HTTP/1.1 400 Bad Request\\r'"),
        (encode(Ping(1)) + b"\n", 'b\'{"t":"ping","sent_ns":1}\''),
    ],
)
def test_what_answers_and_is_no_dslaunch_is_named(settings: Settings, said: bytes, what: str) -> None:
    async def test() -> None:
        def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            assert await refusal(settings(1, port=port)) == (
                f"what answers at 127.0.0.1 port {port} is no dslaunch of this version: {what}",
                "use another --coordination_port on every node, and the same dslaunch",
            )

    run(test())


def test_what_says_nothing_is_named_at_the_deadline(settings: Settings) -> None:
    async def test() -> None:
        writers: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            what, _ = await refusal(settings(1, port=port, hello_timeout_s=0.1, start_timeout_s=0.2))
            assert what.endswith(f"port {port} within 0.2 s: no answer within 0.1 s")
            for writer in writers:
                writer.close()

    run(test())
