"""One call of a member to node 0: proves both sides, then carries the frames of the job."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from dslaunch.launcher.coordination import refusals
from dslaunch.launcher.coordination.attendance import LinkSettings
from dslaunch.launcher.coordination.auth import Direction, Seal, SealError, session_key
from dslaunch.launcher.coordination.clock import ClockOffset
from dslaunch.launcher.coordination.connection import Connection
from dslaunch.launcher.coordination.protocol import (
    PROTOCOL,
    Begin,
    Challenge,
    Down,
    Goodbye,
    Hello,
    Ping,
    Pong,
    ProtocolError,
    Rejected,
    Settled,
    Stop,
    Up,
    Welcome,
    decode,
    encode,
    rejected,
)

_SLEPT_NS = 1_000_000_000
"""A timer that is later than this was held up with all of this process."""


@dataclass(frozen=True, slots=True)
class CallListener:
    """Who is told what node 0 says. `on_refused` and `on_echo` end a call; `on_closed` comes always."""

    on_said: Callable[[Welcome | Begin | Stop | Settled], None]
    on_refused: Callable[[Rejected], None]
    on_echo: Callable[[], None]
    on_closed: Callable[[str], None]
    log: Callable[[str], None]


class Call(Connection):
    """Challenge, Hello, and then the frames of node 0.

    `own_instance` is that of this launcher where it is node 0 itself, to know its own voice.
    """

    def __init__(self, settings: LinkSettings, listener: CallListener, own_instance: str | None) -> None:
        super().__init__()
        self.clock = ClockOffset()
        self._settings = settings
        self._listener = listener
        self._own_instance = own_instance
        self._seal: Seal | None = None
        self._is_welcome = False
        self._is_suspicious = False
        self._heard_ns = time.monotonic_ns()
        self._due_ns = self._heard_ns
        self._timer = self._loop.call_later(settings.hello_timeout_s, self._give_up)

    @property
    def _place(self) -> str:
        return f"{self._settings.master_addr} port {self._settings.port}"

    def tell(self, message: Up) -> None:
        """Before the Challenge has come, nothing is said."""
        if self._seal is not None:
            self.send(self._seal.seal(encode(message)))

    def opened(self) -> None:
        """Node 0 speaks first."""

    def closed(self, reason: str) -> None:
        self._timer.cancel()
        self._listener.on_closed(reason)

    def on_line(self, line: bytes) -> None:
        if self._seal is None:
            self._answer(line)
        else:
            self._hear(self._seal, line)

    # -- saying hello

    def _answer(self, line: bytes) -> None:
        try:
            challenge = decode(line)
        except ProtocolError:
            challenge = None
        if not isinstance(challenge, Challenge):
            self._refuse(
                rejected(
                    f"what answers at {self._place} is no dslaunch of this version: {line[:40]!r}",
                    "use another --coordination_port on every node, and the same dslaunch",
                )
            )
        elif challenge.instance == self._own_instance:
            self._listener.on_echo()
            self.break_off("")
        elif challenge.protocol != PROTOCOL:
            self._decline(refusals.other_protocol(challenge.protocol, self._place), "speaks another protocol")
        elif challenge.keyed and self._settings.key is None:
            self._decline(refusals.no_key(self._place), "has no job key")
        elif not challenge.keyed and self._settings.key is not None:
            self._decline(refusals.no_key_here(self._place), "wants a job key, and there is none here")
        else:
            self._say_hello(line)

    def _say_hello(self, challenge: bytes) -> None:
        settings = self._settings
        hello = Hello(PROTOCOL, secrets.token_hex(16), settings.host, settings.node_rank, settings.facts)
        key = None if settings.key is None else session_key(settings.key, challenge, hello.nonce)
        self._seal = Seal(key, sends=Direction.UP)
        self.tell(hello)

    def _decline(self, refusal: Rejected, reason: str) -> None:
        """Nothing is told to a node 0 that would not prove itself, but why."""
        self.send(encode(Goodbye(reason)))
        self._listener.on_refused(refusal)
        self.finish(self._settings.hello_timeout_s)

    def _refuse(self, refusal: Rejected) -> None:
        self._listener.on_refused(refusal)
        self.break_off("")

    def _give_up(self) -> None:
        self.break_off(f"no answer within {self._settings.hello_timeout_s:g} s")

    # -- node 0's frames

    def _hear(self, seal: Seal, line: bytes) -> None:
        try:
            message = decode(seal.open(line))
        except SealError:
            self._suspect(line)
            return
        except ProtocolError as error:
            self.break_off(f"it sent something else than node 0 does: {error}")
            return
        self._heard_ns = time.monotonic_ns()
        if isinstance(message, Challenge | Pong | Welcome | Begin | Rejected | Stop | Settled):
            self._obey(message)
        else:
            self.break_off(f"it sent a {type(message).__name__}, which node 0 does not")

    def _suspect(self, line: bytes) -> None:
        """A frame that node 0 did not seal. A refusal may come so: for who has no key, there is no seal."""
        if self._is_welcome:
            if not self._is_suspicious:
                self._listener.log(f"{self._place} sent a frame that its seal does not fit; it was ignored")
            self._is_suspicious = True
            return
        try:
            message = decode(line)
        except ProtocolError:
            message = None
        if isinstance(message, Rejected):
            self._refuse(message)
        else:
            self._refuse(refusals.wrong_key(self._place))

    def _obey(self, message: Down) -> None:
        match message:
            case Welcome() if not self._is_welcome:
                self._is_welcome = True
                self._due_ns = self._heard_ns
                self._beat()
                self._listener.on_said(message)
            case Pong(sent_ns, here_ns):
                self.clock.measured(sent_ns, here_ns, self._heard_ns)
            case Begin() | Stop() | Settled() if self._is_welcome:
                self._listener.on_said(message)
            case Rejected():
                self._refuse(message)
            case _:
                self.break_off(f"it sent a {type(message).__name__} at the wrong time")

    def _beat(self) -> None:
        """A Ping; and node 0 is taken for lost when it was silent for the lease, unless this side slept."""
        now_ns = time.monotonic_ns()
        if now_ns - self._due_ns > _SLEPT_NS:
            self._heard_ns = now_ns
        lease_left_ns = self._heard_ns + int(self._settings.lease_s * 1e9) - now_ns
        if lease_left_ns <= 0:
            self.break_off(f"no sign of life for {self._settings.lease_s:g} s")
            return
        next_ns = min(int(self._settings.heartbeat_s * 1e9), lease_left_ns)
        self._due_ns = now_ns + next_ns
        self._timer.cancel()
        self._timer = self._loop.call_later(next_ns / 1e9, self._beat)
        self.tell(Ping(now_ns))
