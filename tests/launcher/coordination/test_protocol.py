"""Frames round-trip, garbage raises the one typed error, and what is told always fits."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.coordination import protocol
from dslaunch.launcher.coordination.facts import Fact, fact
from dslaunch.launcher.coordination.protocol import (
    MAX_FRAME_BYTES,
    Begin,
    Cause,
    Challenge,
    Ended,
    Goodbye,
    Hello,
    Message,
    Ping,
    Pong,
    ProtocolError,
    Rejected,
    Settled,
    Stop,
    Welcome,
    decode,
    encode,
    fitted,
    host_name,
    printable,
    rejected,
)

NONCE = "0123456789abcdef" * 2
text = st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape"))
wild = st.text(st.characters(exclude_categories=()), max_size=3000)
numbers = st.integers(-(2**62), 2**62)
hosts = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=255)
lines = st.lists(text, max_size=5).map(tuple)
causes = st.builds(Cause, numbers, hosts, numbers, st.booleans(), lines)
nonces = st.text("0123456789abcdef", min_size=32, max_size=32)
messages = st.one_of(
    st.builds(Challenge, numbers, nonces, nonces, st.booleans()),
    st.builds(
        Hello,
        numbers,
        nonces,
        hosts,
        st.none() | numbers,
        st.lists(st.builds(Fact, text, text), max_size=8).map(tuple),
    ),
    st.builds(Welcome, text, hosts),
    st.builds(Rejected, text, text),
    st.builds(Begin, numbers),
    st.builds(Ended, numbers, st.none() | numbers, lines),
    st.builds(Stop, causes),
    st.builds(Settled, st.none() | causes),
    st.builds(Ping, numbers),
    st.builds(Pong, numbers, numbers),
    st.builds(Goodbye, text),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(messages)
def test_frames_round_trip(message: Message) -> None:
    frame = encode(message)
    assert frame.isascii()
    assert b"\n" not in frame
    assert decode(frame) == message


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_garbage_raises_only_protocol_error(garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(garbage)


@given(messages, st.data())
def test_a_field_of_another_type_is_refused_or_read_back_the_same(
    message: Message, data: st.DataObject
) -> None:
    record = json.loads(encode(message))
    record[data.draw(st.sampled_from(sorted(record)))] = data.draw(json_values)
    frame = json.dumps(record, separators=(",", ":")).encode()
    try:
        decoded = decode(frame)
    except ProtocolError:
        return
    assert encode(decoded) == frame


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"[]",
        b'{"t":[]}',
        b'{"t":"run","argv":["rm"]}',
        b'{"t":"ping"}',
        b'{"t":"ping","sent_ns":true}',
        b'{"t":"ping","sent_ns":1.0}',
        b'{"t":"ping","sent_ns":9223372036854775808}',
        b'{"t":"ping","sent_ns":1' + b"0" * 5000 + b"}",
        b'{"t":"ping","sent_ns":1,"more":1}',
        b'{"t":"ping","sent_ns":1,"sent_ns":2}',
        b'{"t":"ping", "sent_ns":1}',
        b'{"t":"ping","sent_ns":1}\n',
        b'{"t":"goodbye","reason":"\xc3\xa4"}',
        b'{"t":"welcome","job_id":"","host":"a\\u001b[31m"}',
        b'{"t":"welcome","job_id":"","host":""}',
        b'{"t":"settled","cause":{"node_rank":0}}',
        b'{"t":"settled","cause":[]}',
        b"[" * 8000,
        b'{"t":"goodbye","reason":"' + b"x" * protocol.MAX_LINE_BYTES + b'"}',
        '{"t":"ping","sent_ns":1}'.encode("utf-16"),
    ],
)
def test_what_encode_would_not_have_written_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(frame)


def test_nonces_and_hosts_are_checked() -> None:
    hello = encode(Hello(1, NONCE, "worker-1", None, ()))
    assert decode(hello)
    for old, new in ((NONCE, NONCE[:-1]), (NONCE, NONCE.upper()), ("worker-1", "w\\u00e4")):
        with pytest.raises(ProtocolError):
            decode(hello.replace(old.encode(), new.encode()))


@given(st.lists(wild, max_size=60).map(tuple), wild)
def test_what_a_node_reports_fits_whatever_its_ranks_wrote(said: tuple[str, ...], host: str) -> None:
    kept = fitted(said)
    assert len(encode(Ended(1, 2**62, kept))) <= MAX_FRAME_BYTES
    cause = Cause(2**62, host_name(host * 300), 2**62, True, kept)
    assert decode(encode(Settled(cause))) == Settled(cause)


def test_of_many_lines_the_first_two_and_the_last_are_kept() -> None:
    said = ("error: rank 3 failed", "its last lines:", *(f"    {i} " + "x" * 300 for i in range(40)))
    kept = fitted(said)
    assert kept[:2] == said[:2]
    assert 10 < len(kept) < 30
    assert kept[2:] == said[-(len(kept) - 2) :]
    assert fitted(said[:6]) == said[:6]


@given(wild, wild)
def test_refusals_fit(what: str, hint: str) -> None:
    assert decode(encode(rejected(what, hint)))


@given(st.lists(wild, max_size=8))
def test_a_hello_of_facts_fits(values: list[str]) -> None:
    facts = tuple(fact(f"the field number {i}", value) for i, value in enumerate(values))
    assert decode(encode(Hello(1, NONCE, "h" * 255, 2**30, facts)))


def test_control_characters_are_shown_as_question_marks() -> None:
    assert printable("a\x1b[31m\udc80b\n") == "a?[31m?b?"
    assert host_name("wörker\n1") == "w?rker?1"
    assert host_name("") == "?"
