"""The frames between launcher and agent: one JSON object a line, ASCII only, 32 KiB a line at most.

Standard library only, and no dataclasses: this module travels to the nodes with the agent, whose start it
would slow by a quarter (docs/decisions/0006-agent-without-dataclasses.md). Text fields carry arbitrary bytes
through `surrogateescape`, so what a rank prints and what a user types arrive unchanged.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

MAX_LINE_BYTES = 32 * 1024
"""pdsh was seen to carry lines of 60,000 bytes whole and to tear longer ones."""

_PIECE_CHARS = 2_500
"""Characters of free text in one frame: JSON spends twelve bytes on the worst of them."""


_TOOL_WORDS = (("<", "\\u003c"), ("XXRETCODE", "XX\\u0052ETCODE"))
"""What the labels of mpirun and the end mark of pdsh are made of: they must not come from a rank's output."""

NOTICE_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGURG)
"""By which batch systems give notice. Passed on to the ranks; nothing else changes."""
CENSUS = signal.SIGRTMIN + 1
CENSUS_AND_TERM = signal.SIGRTMIN + 2
"""Signals to an agent to which nothing else can come down: a Census; a Stop by SIGTERM after one."""
CENSUS_S = 2.0
"""How long a census may take on a node."""


class WireError(Exception):
    """Bytes that are no frame. Says what was wrong, with the start of the line."""


class Probe(NamedTuple):
    """Down, before a plan: which of node 0's `addresses` does this host reach, at `port`?"""

    addresses: tuple[str, ...]
    port: int


class PlanPiece(NamedTuple):
    """Down: a piece of the NodePlans as a JSON list; `last` completes it. An agent takes one, by index."""

    text: str
    last: bool


class Stop(NamedTuple):
    """Down: send `signal` to every rank, SIGKILL after `grace_s`, then end.

    Before that, tell where they are, for `census_s` at most; 0 for no such question.
    """

    signal: int
    grace_s: float
    census_s: float


class Census(NamedTuple):
    """Down: tell where the ranks are, by a Stack for each that lives, after `timeout_s` at the latest.

    With `flight` also what their flight recorders hold.
    """

    timeout_s: float
    flight: bool


class Signal(NamedTuple):
    """Down: pass a signal to every rank, and change nothing else."""

    signal: int


class RankSignal(NamedTuple):
    """Down: pass a signal to one rank, if it is the agent's."""

    rank: int
    signal: int


class Stdin(NamedTuple):
    """Down: bytes for a rank's stdin; `last` closes it."""

    rank: int
    text: str
    last: bool


class Heartbeat(NamedTuple):
    """Both ways: the sender lives, at this time of its clock.

    An agent answers each with the `sent_ns` it had as `echo_ns`; on its own account it sends 0.
    """

    sent_ns: int
    echo_ns: int


class Ready(NamedTuple):
    """Up, first: the agent runs on its host.

    `addresses` are its own, the one the launcher reached it by first, `interfaces` the names of theirs.
    `port_in_use` answers for the port asked about in its argv; `free_port` is one that the kernel had free;
    at `probe_port` it answers probes of other agents until it has a plan.
    """

    hostname: str
    pid: int
    python: str
    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]
    port_in_use: bool
    free_port: int
    probe_port: int


class Reached(NamedTuple):
    """Up: the probed addresses that answered, and for each the name of this host's interface towards it."""

    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]


class Refused(NamedTuple):
    """Up, last: the plan cannot run on this host."""

    what: str
    hint: str


class EngineFound(NamedTuple):
    """Up, before the first rank: what `import deepspeed` finds on this host.

    `engine` is "bundled" (dslaunch's), "installed" (DeepSpeed, of this `version`) or "none".
    """

    engine: str
    version: str


class Started(NamedTuple):
    """Up: a rank's process exists."""

    rank: int
    pid: int


class Output(NamedTuple):
    """Up: what a rank wrote, cut anywhere. `stream` is 1 for stdout, 2 for stderr."""

    rank: int
    stream: int
    text: str


class Dropped(NamedTuple):
    """Up: output of a rank that the agent discarded, because the way to the launcher was full."""

    rank: int
    num_bytes: int


class Vitals(NamedTuple):
    """Up, every second: for each living rank `rank state cpu_ms rss_kib`, at this time of the node's clock.

    `state` is the letter of proc(5); processor time and memory are those of the rank and its children.
    """

    monotonic_ms: int
    ranks: tuple[str, ...]


class DeviceUse(NamedTuple):
    """Up, every few seconds where a driver tells: for each device `slot used_mib busy_percent`."""

    devices: tuple[str, ...]


class Stack(NamedTuple):
    """Up: where a rank is. `state` and `waits_in` are the kernel's words for its main thread, as in proc(5).

    `text` is what faulthandler or py-spy wrote of its threads, "" for nothing. `pid` is the process that
    answered: the rank's own, or one that it has started.
    """

    rank: int
    pid: int
    state: str
    waits_in: str
    text: str


class FlightPiece(NamedTuple):
    """Up: a piece of a rank's flight recorder dump, deflated and in base64; `last` completes it."""

    rank: int
    text: str
    last: bool


class CensusEnd(NamedTuple):
    """Up: all that can be told of the ranks was told."""


class Preempted(NamedTuple):
    """Up: the agent was told to end by this signal; where not by the launcher, by someone else."""

    signal: int


class Exited(NamedTuple):
    """Up, once per rank: how its process ended (negative: by that signal), stamped by the node's clock.

    `note` is what the host knows about it, such as that memory ran out; "" where it knows nothing.
    """

    rank: int
    returncode: int
    time_ns: int
    note: str


class Goodbye(NamedTuple):
    """Up, last: every rank is gone, and all that they left behind.

    `stuck` are pids that nothing could end, with their state as in proc(5), mostly D: uninterruptible sleep.
    `progress` is the newest checkpoint that a rank has told of, "" for none.
    """

    stuck: tuple[str, ...]
    progress: str


Down = Probe | PlanPiece | Stop | Census | Signal | RankSignal | Stdin | Heartbeat
Up = (
    Ready
    | Reached
    | Refused
    | EngineFound
    | Started
    | Output
    | Dropped
    | Vitals
    | DeviceUse
    | Stack
    | FlightPiece
    | CensusEnd
    | Preempted
    | Exited
    | Heartbeat
    | Goodbye
)
Message = Down | Up

_KINDS: dict[str, type[Message]] = {kind.__name__.lower(): kind for kind in (*get_args(Down), *get_args(Up))}
_FIELDS: dict[type[Message], dict[str, str]] = {
    # NamedTuple wraps annotations that are text, and those of this module are
    kind: {field: str(getattr(note, "__forward_arg__", note)) for field, note in kind.__annotations__.items()}
    for kind in _KINDS.values()
}
_FIELD_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "float": (float, int),
    "int": (int,),
    "str": (str,),
    "tuple[str, ...]": (list,),
}


def encode(message: Message) -> bytes:
    """One frame with its newline."""
    line = json.dumps({"t": type(message).__name__.lower(), **message._asdict()}, separators=(",", ":"))
    for word, escaped in _TOOL_WORDS:
        line = line.replace(word, escaped)
    return line.encode("ascii") + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line. Raises WireError for anything `encode` would not have written."""
    if len(line) > MAX_LINE_BYTES:
        raise WireError(f"a line of {len(line)} bytes, more than {MAX_LINE_BYTES}: {line[:60]!r}...")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {line[:60]!r}") from error
    name = record.pop("t", None) if isinstance(record, dict) else None
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise WireError(f"no message of this protocol: {line[:60]!r}")
    values: dict[str, Any] = {}
    for field, annotation in _FIELDS[kind].items():
        value = record.pop(field, None)
        if not _has_type(value, annotation):
            raise WireError(f"{kind.__name__}.{field} is {value!r}: {line[:60]!r}")
        values[field] = tuple(value) if isinstance(value, list) else value
    if record:
        raise WireError(f"{kind.__name__} has no field {min(record)!r}: {line[:60]!r}")
    return kind(**values)


def _has_type(value: object, annotation: str) -> bool:
    if not isinstance(value, _FIELD_TYPES[annotation]):
        return False
    if isinstance(value, bool):
        return annotation == "bool"
    return not isinstance(value, list) or all(isinstance(item, str) for item in value)


def encode_output(rank: int, stream: int, data: bytes) -> bytes:
    """Frames that carry `data` of one rank's stream."""
    text = data.decode("utf-8", "surrogateescape")
    return b"".join(encode(Output(rank, stream, piece)) for piece in _pieces(text))


def encode_stack(stack: Stack) -> bytes:
    """One frame; of a text that is too long for it the end is kept, where the main thread stands."""
    frame = encode(stack)
    while len(frame) > MAX_LINE_BYTES:
        stack = stack._replace(text=stack.text[len(stack.text) // 2 :])
        frame = encode(stack)
    return frame


def encode_stdin(rank: int, data: bytes) -> bytes:
    """Frames that carry `data` to a rank's stdin; no data closes it."""
    if not data:
        return encode(Stdin(rank, "", True))
    text = data.decode("utf-8", "surrogateescape")
    return b"".join(encode(Stdin(rank, piece, False)) for piece in _pieces(text))


def encode_plans(text: str) -> bytes:
    """Frames that carry NodePlans as JSON text."""
    pieces = list(_pieces(text)) or [""]
    return b"".join(encode(PlanPiece(piece, i == len(pieces) - 1)) for i, piece in enumerate(pieces))


def _pieces(text: str) -> Iterator[str]:
    size = 8 * _PIECE_CHARS if text.isascii() else _PIECE_CHARS
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        if size > _PIECE_CHARS and len(json.dumps(piece)) > MAX_LINE_BYTES - 200:
            # ASCII full of quotes, backslashes or control characters
            yield from (piece[i : i + _PIECE_CHARS] for i in range(0, len(piece), _PIECE_CHARS))
        else:
            yield piece


class Decoder:
    """Cuts a byte stream into messages; a torn last line waits for its rest."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages completed by `data`. Raises WireError."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield decode(line)
        if len(self._rest) > MAX_LINE_BYTES:
            raise WireError(f"a line longer than {MAX_LINE_BYTES} bytes: {self._rest[:60]!r}...")
