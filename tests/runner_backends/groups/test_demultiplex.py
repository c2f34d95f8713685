"""Labelled output told apart again, wherever the chunks end."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import GroupCommand
from dslaunch.runner_backends.demultiplex import Demultiplexer, LabelledLines, LabelledPieces
from dslaunch.runner_backends.hydra import MpichBackend
from dslaunch.runner_backends.openmpi import OpenMpiBackend
from dslaunch.runner_backends.pdsh import PdshBackend
from dslaunch.runner_backends.slurm import SlurmBackend

NUM_HOSTS = 12
TEXT = st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"").replace(b"\0", b""))
SAID = st.lists(st.tuples(st.integers(0, NUM_HOSTS - 1), TEXT), max_size=30)


def lines_of(demultiplexer: Demultiplexer, chunks: Iterable[bytes]) -> tuple[dict[int, bytes], bytes]:
    """What each process said, and the tool itself; every line but the last is whole."""
    said: defaultdict[int, bytes] = defaultdict(bytes)
    own = b""
    for chunk in chunks:
        found = demultiplexer.feed(chunk)
        assert all(line.endswith(b"\n") for lines in [*found.lines.values(), found.own] for line in lines)
        for index, lines in found.lines.items():
            said[index] += b"".join(lines)
        own += b"".join(found.own)
    found = demultiplexer.end()
    for index, lines in found.lines.items():
        said[index] += b"".join(lines)
    return dict(said), own + b"".join(found.own)


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def expected(said: list[tuple[int, bytes]]) -> dict[int, bytes]:
    whole: defaultdict[int, bytes] = defaultdict(bytes)
    for index, text in said:
        whole[index] += text + b"\n"
    return dict(whole)


def command(*names: str) -> GroupCommand:
    names = names or tuple(f"w{i}" for i in range(NUM_HOSTS))
    return GroupCommand(tuple(Host(name, (0,)) for name in names), ("true",), b"")


@given(said=SAID, size=st.integers(1, 50))
def test_lines(said: list[tuple[int, bytes]], size: int) -> None:
    stream = b"".join(b"w%d: %b\n" % line for line in said)
    assert lines_of(PdshBackend().demultiplexer(command()), cut(stream, size)) == (expected(said), b"")


@given(said=SAID, size=st.integers(1, 50), piece=st.integers(1, 20))
def test_lines_in_pieces(said: list[tuple[int, bytes]], size: int, piece: int) -> None:
    stream = b""
    for index, text in said:
        # A line that fills its last piece goes on in an empty one.
        pieces = [*cut(text, piece), b""] if len(text) % piece == 0 else cut(text, piece)
        stream += b"".join(b"%2d: %b\n" % (index, part) for part in pieces)
    indices = {b"%d" % i: i for i in range(NUM_HOSTS)}
    demultiplexer = LabelledLines(re.compile(rb" *(\d+): "), indices, piece)
    assert lines_of(demultiplexer, cut(stream, size)) == (expected(said), b"")


@given(said=SAID, size=st.integers(1, 50), piece=st.integers(1, 20))
def test_pieces_of_several_on_one_line(said: list[tuple[int, bytes]], size: int, piece: int) -> None:
    said = [(index, text.replace(b"<", b"")) for index, text in said]
    waiting = {index: cut(text, piece) for index, text in expected(said).items()}
    stream = b""
    while waiting:
        for index in list(waiting):
            part = waiting[index].pop(0)
            stream += b"".join(b"<dslaunch:%d>%b" % (index, line) for line in part.splitlines(keepends=True))
            if not waiting[index]:
                del waiting[index]
    # splitlines also splits at \r and others, where no tool puts a label; it does no harm.
    assert lines_of(MpichBackend().demultiplexer(command()), cut(stream, size)) == (expected(said), b"")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_words_of_the_tool(size: int) -> None:
    stream = b"one: two: three\nw1: yes\nprterun: no\nw77: no\nw0: yes: w1: yes\nat the end"
    assert lines_of(PdshBackend().demultiplexer(command()), cut(stream, size)) == (
        {0: b"yes: w1: yes\n", 1: b"yes\n"},
        b"one: two: three\nprterun: no\nw77: no\nat the end",
    )
    stream = b"mpirun: a\n[1,1]<stdout>:x[1,0]<stdout>:y\n[1,1]<stdout>:[]\nb\nc\n"
    stream += b"[1,99]<stdout>:d\n[1,0]<stdout>:e"
    assert lines_of(OpenMpiBackend(major=4).demultiplexer(command()), cut(stream, size)) == (
        {0: b"y\ne", 1: b"x[]\n"},
        b"mpirun: a\nb\nc\nd\n",
    )


def test_labels_of_open_mpi_5() -> None:
    stream = b"[1,0]<stdout>: a\n[prterun-w0-71@1,11]<stdout>:  b\n"
    assert lines_of(OpenMpiBackend(major=5).demultiplexer(command()), [stream]) == (
        {0: b"a\n", 11: b" b\n"},
        b"",
    )


def test_labels_of_pdsh() -> None:
    same = PdshBackend().demultiplexer(command("a.site", "b.site", "c"))
    assert lines_of(same, [b"b: 1\nc: 2\na: 3\n"]) == ({0: b"3\n", 1: b"1\n", 2: b"2\n"}, b"")
    other = PdshBackend().demultiplexer(command("a.site", "a.lab", "10.0.0.1", "::1"))
    assert lines_of(other, [b"a.lab: 1\n10.0.0.1: 2\na.site: 3\n::1: 4\na: 5\n"]) == (
        {0: b"3\n", 1: b"1\n", 2: b"2\n", 3: b"4\n"},
        b"a: 5\n",
    )


@pytest.mark.parametrize("label", [b"3: ", b" 3: ", b"03: ", b"003: "])
def test_labels_of_srun(label: bytes) -> None:
    demultiplexer = SlurmBackend().demultiplexer(command())
    assert lines_of(demultiplexer, [label + b" x\n" + b"11: y\n"]) == ({3: b" x\n", 11: b"y\n"}, b"")


def test_a_line_of_many_chunks_is_not_copied_over_and_over() -> None:
    chunk = b"x" * 65536
    for demultiplexer in (
        PdshBackend().demultiplexer(command()),
        LabelledPieces(re.compile(rb"(\d+): "), b"w", NUM_HOSTS),
    ):
        for _ in range(300):
            assert not demultiplexer.feed(chunk).own
        assert len(b"".join(demultiplexer.end().own)) == 300 * 65536
