"""The chunk queue holds its source back; the tail keeps the end."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.runner_backends.output import HIGH_BYTES, LOW_BYTES, OutputBuffer
from dslaunch.runner_backends.tail import TAIL_BYTES, Tail


class Source:
    """Counts how it is held back and let go."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.buffer = OutputBuffer(lambda: self.calls.append("pause"), lambda: self.calls.append("resume"))


@given(st.lists(st.binary(max_size=20)))
def test_chunks_come_out_as_they_went_in(chunks: list[bytes]) -> None:
    async def main() -> list[bytes]:
        source = Source()
        for chunk in chunks:
            source.buffer.feed(chunk)
        source.buffer.end()
        return [chunk async for chunk in source.buffer.chunks()]

    assert asyncio.run(main()) == [chunk for chunk in chunks if chunk]


def test_a_slow_reader_holds_the_source_back_once_and_lets_it_go_once() -> None:
    async def main() -> None:
        source = Source()
        chunk = b"x" * LOW_BYTES
        num_chunks = HIGH_BYTES // LOW_BYTES + 1
        for _ in range(num_chunks):
            source.buffer.feed(chunk)
        source.buffer.feed(chunk)
        assert source.calls == ["pause"]
        reader = source.buffer.chunks()
        for _ in range(num_chunks - 1):
            await anext(reader)
        assert source.calls == ["pause"]
        await anext(reader)
        await anext(reader)
        assert source.calls == ["pause", "resume"]

    asyncio.run(main())


def test_a_reader_waits_for_what_comes_later() -> None:
    async def main() -> list[bytes]:
        source = Source()
        reader = asyncio.create_task(collect(source.buffer))
        await asyncio.sleep(0)
        source.buffer.feed(b"late")
        await asyncio.sleep(0)
        source.buffer.end()
        return await reader

    assert asyncio.run(main()) == [b"late"]


def test_a_source_that_has_ended_is_not_called_any_more() -> None:
    async def main() -> None:
        source = Source()
        source.buffer.feed(b"x" * (HIGH_BYTES + 1))
        source.buffer.end()
        await collect(source.buffer)
        source.buffer.discard()
        assert source.calls == ["pause"]

    asyncio.run(main())


def test_discarding_lets_the_source_run() -> None:
    async def main() -> None:
        source = Source()
        source.buffer.feed(b"x" * (HIGH_BYTES + 1))
        source.buffer.discard()
        source.buffer.feed(b"x" * (HIGH_BYTES + 1))
        assert source.calls == ["pause", "resume"]
        source.buffer.end()
        assert await collect(source.buffer) == []

    asyncio.run(main())


async def collect(buffer: OutputBuffer) -> list[bytes]:
    return [chunk async for chunk in buffer.chunks()]


@given(st.lists(st.binary(max_size=3 * TAIL_BYTES), max_size=8))
def test_the_tail_is_the_end_of_all_that_was_fed(chunks: list[bytes]) -> None:
    tail = Tail()
    for chunk in chunks:
        tail.feed(chunk)
    text = b"".join(chunks)[-TAIL_BYTES:].decode("utf-8", "replace")
    assert text.endswith(tail.text())
    assert len(text) - len(tail.text()) <= 3


def test_a_cut_character_is_left_out_of_the_tail() -> None:
    tail = Tail()
    tail.feed("é".encode() * TAIL_BYTES + b"!")
    assert tail.text() == "é" * (TAIL_BYTES // 2 - 1) + "!"
