"""With a job key, both sides are proven and nothing can be changed, repeated, reflected or left out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.launcher.coordination.auth import Direction, Seal, SealError, job_key, session_key, unsealed
from dslaunch.launcher.coordination.protocol import MAX_FRAME_BYTES, MAX_LINE_BYTES, Challenge, Ping, encode
from dslaunch.launcher.errors import UsageError

KEY = b"a job key of some length"
NONCE, OTHER = "0" * 32, "1" * 32
CHALLENGE = encode(Challenge(1, NONCE, NONCE, True))
FRAMES = [encode(Ping(i)) for i in range(4)]


def pair(key: bytes | None = KEY, other: bytes | None = None) -> tuple[Seal, Seal]:
    """A member's seal, and node 0's."""
    up, down = (None if each is None else session_key(each, CHALLENGE, NONCE) for each in (key, other or key))
    return Seal(up, sends=Direction.UP), Seal(down, sends=Direction.DOWN)


@pytest.mark.parametrize("key", [KEY, None])
def test_both_ways_are_open_to_those_who_share_a_key(key: bytes | None) -> None:
    member, node0 = pair(key)
    for frame in FRAMES:
        assert node0.open(member.seal(frame)) == frame
        assert member.open(node0.seal(frame)) == frame


def test_a_sealed_line_is_one_json_object_and_fits() -> None:
    member, _ = pair()
    line = member.seal(FRAMES[0])
    assert list(json.loads(line)) == ["mac", "t", "sent_ns"]
    assert unsealed(line) == FRAMES[0]
    assert len(member.seal(b"{" + b"x" * (MAX_FRAME_BYTES - 1))) <= MAX_LINE_BYTES


def test_another_key_opens_nothing() -> None:
    member, node0 = pair(KEY, KEY + b"!")
    with pytest.raises(SealError):
        node0.open(member.seal(FRAMES[0]))


def test_nonces_and_all_of_the_challenge_go_into_the_session_key() -> None:
    keys = {
        session_key(KEY, CHALLENGE, NONCE),
        session_key(KEY, CHALLENGE, OTHER),
        session_key(KEY, encode(Challenge(1, NONCE, OTHER, True)), NONCE),
        session_key(KEY, encode(Challenge(1, OTHER, NONCE, True)), NONCE),
        session_key(KEY, encode(Challenge(1, NONCE, NONCE, False)), NONCE),
        session_key(KEY, encode(Challenge(2, NONCE, NONCE, True)), NONCE),
    }
    assert len(keys) == 6


def test_a_replayed_frame_is_refused_and_the_next_one_still_opens() -> None:
    member, node0 = pair()
    first, second = member.seal(FRAMES[0]), member.seal(FRAMES[1])
    node0.open(first)
    for _ in range(3):
        with pytest.raises(SealError):
            node0.open(first)
    assert node0.open(second) == FRAMES[1]


def test_a_frame_that_was_left_out_or_reordered_is_noticed() -> None:
    member, node0 = pair()
    first, second = member.seal(FRAMES[0]), member.seal(FRAMES[1])
    with pytest.raises(SealError):
        node0.open(second)
    node0.open(first)
    node0.open(second)


def test_a_frame_cannot_be_reflected() -> None:
    member, _ = pair()
    with pytest.raises(SealError):
        member.open(member.seal(FRAMES[0]))


def test_a_frame_without_a_seal_is_no_way_around_it() -> None:
    _, node0 = pair()
    for line in (FRAMES[0], b"", b'{"mac":"', b'{"mac":"",' + FRAMES[0][1:]):
        with pytest.raises(SealError):
            node0.open(line)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_is_noticed(place: int, change: int) -> None:
    member, node0 = pair()
    line = bytearray(member.seal(FRAMES[0]))
    line[place % len(line)] ^= change
    with pytest.raises(SealError):
        node0.open(bytes(line))


@given(st.binary(max_size=200))
def test_garbage_raises_only_seal_error(garbage: bytes) -> None:
    _, node0 = pair()
    with pytest.raises(SealError):
        node0.open(garbage)


def test_a_job_key_is_stripped_and_has_a_least_length() -> None:
    assert job_key(b" 0123456789abcdef\n", "DSLAUNCH_JOB_KEY") == b"0123456789abcdef"
    with pytest.raises(UsageError) as error:
        job_key(b"secret\n", "/etc/key")
    assert error.value.what == "the job key in /etc/key has 6 bytes, fewer than 16"
    assert error.value.hint == "make one with: openssl rand -hex 32"
