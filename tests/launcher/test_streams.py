"""Whole lines from chunks cut anywhere."""

from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.streams import MAX_LINE_BYTES, NUM_TAIL_LINES, LineStream


@given(
    st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")), max_size=9),
    st.integers(1, 9),
)
def test_lines_come_whole(lines: list[bytes], chunk_bytes: int) -> None:
    data = b"\n".join(lines)
    stream = LineStream()
    seen = [line for i in range(0, len(data), chunk_bytes) for line in stream.feed(data[i : i + chunk_bytes])]
    seen += stream.end()
    assert seen == ([*lines[:-1], lines[-1]] if lines and lines[-1] else lines[:-1])


def test_a_progress_bar_shows_its_last_state() -> None:
    stream = LineStream()
    assert list(stream.feed(b"\r10 %\r50 %\r100 %\ndone\r\n")) == [b"100 %", b"done"]


def test_an_endless_line_comes_in_pieces() -> None:
    stream = LineStream()
    pieces = [*stream.feed(b"x" * (2 * MAX_LINE_BYTES + 5)), *stream.end()]
    assert [len(piece) for piece in pieces] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 5]


def test_the_tail_is_bounded() -> None:
    stream = LineStream()
    list(stream.feed(b"".join(b"%d\n" % i for i in range(300))))
    assert list(stream.tail) == [b"%d" % i for i in range(300 - NUM_TAIL_LINES, 300)]
