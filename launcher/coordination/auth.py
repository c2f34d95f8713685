"""Seals: with a job key both sides prove it to each other, and every frame is authentic. Pure.

Challenge and Hello each bring a fresh nonce. Both go into the session key, with all that Challenge says, so
that nothing recorded is good a second time and nobody can pretend that the other has no key. Hello is the
first frame up and Welcome the first one down that can only be sealed with it. A seal is HMAC-SHA256 (RFC
2104) over direction, sequence number and frame. Without a job key seals are empty: the link then trusts its
network, like the ranks' own rendezvous. Frames are never secret.
"""

from __future__ import annotations

import hmac
from enum import Enum

from dslaunch.launcher.coordination.protocol import Nonce
from dslaunch.launcher.errors import UsageError

MIN_KEY_BYTES = 16
_LABEL = b"dslaunch coordination 1"
_START = b'{"mac":"'
_SPLIT = b'",'
_MAC_CHARS = 64
_NUM_SEAL_BYTES = len(_START) + _MAC_CHARS + len(_SPLIT)


class SealError(Exception):
    """A line that was not sealed with this key, for this direction, at this place."""


class Direction(Enum):
    """Which way a frame goes."""

    UP = b"up"
    """From a member to node 0."""
    DOWN = b"down"
    """From node 0 to a member."""


def job_key(text: bytes, source: str) -> bytes:
    """The key in a variable or a file named `source`. Raises UsageError where it is too short to be one."""
    key = text.strip()
    if len(key) < MIN_KEY_BYTES:
        raise UsageError(
            f"the job key in {source} has {len(key)} bytes, fewer than {MIN_KEY_BYTES}",
            "make one with: openssl rand -hex 32",
        )
    return key


def session_key(key: bytes, challenge: bytes, nonce: Nonce) -> bytes:
    """The key of one connection, from the job key, the Challenge's frame and the nonce in Hello."""
    return hmac.digest(key, b"\n".join((_LABEL, challenge, nonce.encode())), "sha256")


class Seal:
    """One side's seals of one connection. `key` is None where there is no job key."""

    def __init__(self, key: bytes | None, *, sends: Direction) -> None:
        self._key = key
        self._sends = sends
        self._receives = Direction.UP if sends is Direction.DOWN else Direction.DOWN
        self._num_sent = 0
        self._num_received = 0

    def seal(self, frame: bytes) -> bytes:
        """The line of the next frame, still one JSON object."""
        if self._key is None:
            return frame
        mac = _mac(self._key, self._sends, self._num_sent, frame)
        self._num_sent += 1
        return _START + mac + _SPLIT + frame[1:]

    def open(self, line: bytes) -> bytes:
        """The frame of the next line. Raises SealError, and then still waits for the same frame."""
        if self._key is None:
            return line
        frame = unsealed(line)
        mac = line[len(_START) : len(_START) + _MAC_CHARS]
        if not hmac.compare_digest(mac, _mac(self._key, self._receives, self._num_received, frame)):
            raise SealError("a seal that does not fit")
        self._num_received += 1
        return frame


def unsealed(line: bytes) -> bytes:
    """The frame in a sealed line, unproven. Raises SealError where there is no seal."""
    if not line.startswith(_START) or line[_NUM_SEAL_BYTES - len(_SPLIT) : _NUM_SEAL_BYTES] != _SPLIT:
        raise SealError("no seal")
    return b"{" + line[_NUM_SEAL_BYTES:]


def _mac(key: bytes, direction: Direction, number: int, frame: bytes) -> bytes:
    text = b"%s %d %s" % (direction.value, number, frame)
    return hmac.digest(key, text, "sha256").hex().encode()
