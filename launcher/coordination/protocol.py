"""The frames of the coordination link: one JSON object a line, ASCII only, 8 KiB a line at most. Pure.

A connection goes: Challenge down, Hello up, Welcome down, then Begin when every node is there. Rejected
ends it at any time before. While the job runs, members send Ping and Ended, node 0 answers with Pong, Stop
and at last Settled. Times are monotonic nanoseconds: `sent_ns` on the member's clock, all others on node 0's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dslaunch.launcher.coordination.facts import Fact, Facts, shortened

PROTOCOL = 1
MAX_LINE_BYTES = 8 * 1024
MAX_FRAME_BYTES = MAX_LINE_BYTES - 128
"""A frame leaves room for its seal."""
_MAX_HOST_CHARS = 255
_MAX_TEXT_BYTES = 6 * 1024
_MAX_LINE_TEXT_BYTES = 600
_MAX_HINT_BYTES = 1024
_MAX_INT = 1 << 63

Nonce = str
"""32 hexadecimal digits."""
HostName = str
"""Printable ASCII, 1 to 255 characters."""


class ProtocolError(Exception):
    """Bytes that are no frame. Says what was wrong, with the start of the line."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What ended the job badly: the node, the exit code of every launcher, and the lines each prints."""

    node_rank: int
    host: HostName
    exit_code: int
    lost: bool
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Challenge:
    """Down, first: which launcher listens, unlike any other, and whether it has a job key."""

    protocol: int
    instance: Nonce
    nonce: Nonce
    keyed: bool


@dataclass(frozen=True, slots=True)
class Hello:
    """Up, first: who joins, at which place (None: any), and how it sees the job."""

    protocol: int
    nonce: Nonce
    host: HostName
    node_rank: int | None
    facts: Facts


@dataclass(frozen=True, slots=True)
class Welcome:
    """Down: the node is in; the others are waited for. `host` is node 0's name."""

    job_id: str
    host: HostName


@dataclass(frozen=True, slots=True)
class Rejected:
    """Down, last: the node cannot join, or the job cannot begin."""

    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Down: every node is there, and this is the node's place."""

    node_rank: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Up: how the node's part ended, and when (None: just now). Lines name the cause of a bad end."""

    exit_code: int
    at_ns: int | None
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Down: end the node's ranks. The cause may yet give way to an earlier one."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Settled:
    """Down, last: how the job ended. No cause means that every node reported 0."""

    cause: Cause | None

    @property
    def exit_code(self) -> int:
        return 0 if self.cause is None else self.cause.exit_code


@dataclass(frozen=True, slots=True)
class Ping:
    """Up: the node lives."""

    sent_ns: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Down: node 0 lives, and what its clock says."""

    sent_ns: int
    here_ns: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """Up, last: the launcher leaves by itself."""

    reason: str


Down = Challenge | Welcome | Rejected | Begin | Stop | Settled | Pong
Up = Hello | Ended | Ping | Goodbye
Message = Down | Up

_KINDS: Mapping[str, type[Message]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Challenge, Welcome, Rejected, Begin, Stop, Settled, Pong),
        *(Hello, Ended, Ping, Goodbye),
    )
}


def encode(message: Message) -> bytes:
    """One frame without a newline. Raises ValueError where it is too long: see `fitted` and `rejected`."""
    record = asdict(message)
    if isinstance(message, Hello):
        record["facts"] = [[fact.name, fact.value] for fact in message.facts]
    text = json.dumps({"t": type(message).__name__.lower(), **record}, separators=(",", ":"))
    if len(text) > MAX_FRAME_BYTES:
        raise ValueError(f"a {type(message).__name__} of {len(text)} bytes")
    return text.encode("ascii")


def decode(frame: bytes) -> Message:
    """The message of one frame. Raises ProtocolError for anything that `encode` would not have written."""
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(frame)} bytes, more than {MAX_FRAME_BYTES}")
    try:
        message: Message = _read(_KINDS, json.loads(frame))
        if encode(message) == frame:
            return message
    except (ValueError, RecursionError):
        pass
    raise ProtocolError(f"no message of this protocol: {frame[:60]!r}")


def _read(kinds: Mapping[str, type[Any]], record: object) -> Any:
    """Raises ValueError."""
    name = record.get("t") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not isinstance(name, str) or name not in kinds:
        raise ValueError(name)
    return _filled(kinds[name], record)


def _filled(kind: type[Any], record: Mapping[str, object]) -> Any:
    return kind(**{field.name: _READERS[str(field.type)](record.get(field.name)) for field in fields(kind)})


def _int(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _MAX_INT:
        raise ValueError(value)
    return value


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _nonce(value: object) -> Nonce:
    text = _str(value)
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise ValueError(text)
    return text


def _host(value: object) -> HostName:
    text = _str(value)
    if not text or text != host_name(text):
        raise ValueError(text)
    return text


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(value)
    return value


def _fact(value: object) -> Fact:
    name, text = _list(value)
    return Fact(_str(name), _str(text))


def _cause(value: object) -> Cause:
    if not isinstance(value, dict):
        raise ValueError(value)
    cause: Cause = _filled(Cause, value)
    return cause


_READERS: Mapping[str, Callable[[object], object]] = {
    "int": _int,
    "int | None": lambda value: None if value is None else _int(value),
    "bool": _bool,
    "str": _str,
    "Nonce": _nonce,
    "HostName": _host,
    "tuple[str, ...]": lambda value: tuple(_str(line) for line in _list(value)),
    "Facts": lambda value: tuple(_fact(item) for item in _list(value)),
    "Cause": _cause,
    "Cause | None": lambda value: None if value is None else _cause(value),
}


def fitted(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Lines that fit into a frame: each cut, and where they are too many the first and the last kept."""
    cut = [shortened(line, _MAX_LINE_TEXT_BYTES) for line in lines]
    sizes = [len(json.dumps(line)) + 1 for line in cut]
    budget, start = _MAX_TEXT_BYTES - sum(sizes[:2]), len(cut)
    while start > 2 and budget >= sizes[start - 1]:
        start -= 1
        budget -= sizes[start]
    return (*cut[:2], *cut[start:]) if start > 2 else tuple(cut)


def rejected(what: str, hint: str) -> Rejected:
    """A Rejected that fits into a frame."""
    return Rejected(shortened(what, _MAX_TEXT_BYTES), shortened(hint, _MAX_HINT_BYTES))


def host_name(text: str) -> HostName:
    """What a machine calls itself, as far as it can be told on the link."""
    return printable(text.encode("ascii", "replace").decode("ascii"))[:_MAX_HOST_CHARS] or "?"


def printable(text: str) -> str:
    """Without the control characters that a stranger may have put in."""
    return "".join(char if char.isprintable() else "?" for char in text)
