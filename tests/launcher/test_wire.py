"""Frames round-trip however the stream is cut, and garbage raises the one typed error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher import wire

text = st.binary(max_size=300).map(lambda data: data.decode("utf-8", "surrogateescape"))
small = st.integers(-(2**31), 2**31)
seconds = st.floats(0, 1e9, allow_nan=False)
texts = st.lists(text, max_size=3).map(tuple)
messages = st.one_of(
    st.builds(wire.PlanPiece, text, st.booleans()),
    st.builds(wire.Stop, small, seconds, seconds),
    st.builds(wire.Census, seconds, st.booleans()),
    st.builds(wire.FlightPiece, small, text, st.booleans()),
    st.builds(wire.Stack, small, small, text, text, text),
    st.builds(wire.CensusEnd),
    st.builds(wire.Vitals, st.integers(0, 2**63), texts),
    st.builds(wire.DeviceUse, texts),
    st.builds(wire.Signal, small),
    st.builds(wire.Preempted, small),
    st.builds(wire.RankSignal, small, small),
    st.builds(wire.Heartbeat, st.integers(0, 2**63), st.integers(0, 2**63)),
    st.builds(wire.Ready, text, small, text, texts, texts, st.booleans(), small, small),
    st.builds(wire.Probe, texts, small),
    st.builds(wire.Reached, texts, texts),
    st.builds(wire.Stdin, small, text, st.booleans()),
    st.builds(wire.Goodbye, texts, text),
    st.builds(wire.Refused, text, text),
    st.builds(wire.EngineFound, text, text),
    st.builds(wire.Started, small, small),
    st.builds(wire.Output, small, st.sampled_from((1, 2)), text),
    st.builds(wire.Dropped, small, small),
    st.builds(wire.Exited, small, small, st.integers(0, 2**63), text),
)


@given(st.lists(messages, max_size=8), st.integers(1, 200))
def test_frames_survive_any_cutting(sent: list[wire.Message], chunk_bytes: int) -> None:
    stream = b"".join(wire.encode(message) for message in sent)
    decoder = wire.Decoder()
    received = [
        message
        for start in range(0, len(stream), chunk_bytes)
        for message in decoder.feed(stream[start : start + chunk_bytes])
    ]
    assert received == sent


@given(st.binary(max_size=200))
def test_garbage_raises_only_wire_error(garbage: bytes) -> None:
    try:
        message = wire.decode(garbage)
    except wire.WireError:
        return
    assert wire.decode(wire.encode(message).rstrip(b"\n")) == message


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ([], "no message of this protocol"),
        ({"t": "format_disk"}, "no message of this protocol"),
        ({"t": []}, "no message of this protocol"),
        ({"t": "started", "rank": 1}, "Started.pid is None"),
        ({"t": "started", "rank": True, "pid": 1}, "Started.rank is True"),
        ({"t": "started", "rank": "1", "pid": 1}, "Started.rank is '1'"),
        ({"t": "started", "rank": 1, "pid": 1, "x": 0}, "Started has no field 'x'"),
        ({"t": "ready", "addresses": [1]}, "Ready.hostname is None"),
    ],
)
def test_wrong_records_are_named(record: object, error: str) -> None:
    with pytest.raises(wire.WireError, match=error.replace("(", r"\(")):
        wire.decode(json.dumps(record).encode())


def test_an_endless_line_is_refused() -> None:
    decoder = wire.Decoder()
    with pytest.raises(wire.WireError, match="longer than"):
        list(decoder.feed(b"x" * (wire.MAX_LINE_BYTES + 1)))


@pytest.mark.parametrize("unit", [b"a", b'"', b"\\", b"\x00", b"\xff", "é".encode(), "😀".encode(), b"\n"])
def test_output_of_any_bytes_fits_the_line_limit_and_arrives(unit: bytes) -> None:
    data = unit * (100_000 // len(unit))
    frames = wire.encode_output(3, 2, data)
    assert all(len(line) <= wire.MAX_LINE_BYTES for line in frames.split(b"\n"))
    pieces = [message for message in wire.Decoder().feed(frames) if isinstance(message, wire.Output)]
    assert b"".join(piece.text.encode("utf-8", "surrogateescape") for piece in pieces) == data
    assert {(piece.rank, piece.stream) for piece in pieces} == {(3, 2)}


@given(st.text(max_size=60_000))
def test_plans_arrive_whole(plan: str) -> None:
    pieces = [
        message
        for message in wire.Decoder().feed(wire.encode_plans(plan))
        if isinstance(message, wire.PlanPiece)
    ]
    assert "".join(piece.text for piece in pieces) == plan
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]


OLD_FRAMES = [
    b'{"t":"planpiece","text":"{}","last":true}',
    b'{"t":"stop","signal":15,"grace_s":30.0,"census_s":2.0}',
    b'{"t":"signal","signal":10}',
    b'{"t":"heartbeat","sent_ns":1700000000000000000,"echo_ns":0}',
    b'{"t":"ready","hostname":"worker-0","pid":7,"python":"3.11.7","addresses":["10.0.0.1"],'
    b'"interfaces":["eth0"],"port_in_use":false,"free_port":40001,"probe_port":40002}',
    b'{"t":"probe","addresses":["10.0.0.1"],"port":40002}',
    b'{"t":"reached","addresses":["10.0.0.1"],"interfaces":["eth0"]}',
    b'{"t":"stdin","rank":0,"text":"c\\n","last":false}',
    b'{"t":"goodbye","stuck":[],"progress":"global_step3"}',
    b'{"t":"refused","what":"no folder /x","hint":"create it"}',
    b'{"t":"started","rank":0,"pid":8}',
    b'{"t":"output","rank":0,"stream":1,"text":"hello\\n"}',
    b'{"t":"dropped","rank":0,"num_bytes":12}',
    b'{"t":"exited","rank":0,"returncode":-9,"time_ns":1700000000000000000,"note":""}',
]


@pytest.mark.parametrize("line", OLD_FRAMES)
def test_frames_look_as_they_always_did(line: bytes) -> None:
    assert wire.encode(wire.decode(line)) == line + b"\n"
