"""The door of node 0: lets connections prove who they are, within bounds, and keeps strangers out."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from dslaunch.launcher.coordination import refusals
from dslaunch.launcher.coordination.attendance import LinkSettings
from dslaunch.launcher.coordination.auth import Direction, Seal, SealError, session_key, unsealed
from dslaunch.launcher.coordination.connection import Connection
from dslaunch.launcher.coordination.protocol import (
    PROTOCOL,
    Challenge,
    Down,
    Ended,
    Goodbye,
    Hello,
    Message,
    Ping,
    ProtocolError,
    Rejected,
    decode,
    encode,
    printable,
)

LINGER_S = 2.0
"""For last words to arrive."""
_NUM_STRANGERS = 64
"""How many connections more than there are nodes may be without a place."""
_MAX_NOTED = 1000


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told what proven peers do, by their number."""

    on_arrived: Callable[[int, Hello], None]
    on_heard: Callable[[int, Ended | Ping | Goodbye], None]
    on_left: Callable[[int, str], None]
    log: Callable[[str], None]


class Reception:
    """Makes a guest of each connection. `instance` tells this launcher from any other."""

    def __init__(self, settings: LinkSettings, listener: Listener) -> None:
        self.settings = settings
        self.listener = listener
        self.instance = secrets.token_hex(16)
        self._guests: dict[int, Guest] = {}
        self._strangers: dict[int, Guest] = {}
        self._num_guests = 0
        self._is_closed = False
        self._noted: set[tuple[str, str]] = set()

    def guest(self) -> Guest:
        """The protocol of a new connection."""
        self._num_guests += 1
        return Guest(self._num_guests, self)

    def send(self, peer: int, message: Down) -> None:
        if peer in self._guests:
            self._guests[peer].tell(message)

    def hang_up(self, peer: int) -> None:
        if peer in self._guests:
            self._strangers[peer] = self._guests[peer]
            self._guests[peer].finish(LINGER_S)

    async def close(self) -> None:
        """Let last words arrive, then end every connection."""
        self._is_closed = True
        for peer, guest in self._guests.items():
            if peer in self._strangers and not guest.is_leaving:
                guest.break_off("")
            else:
                guest.finish(LINGER_S)
        if self._guests:
            await asyncio.wait([guest.gone for guest in self._guests.values()], timeout=LINGER_S + 1)

    # -- for guests

    def entered(self, guest: Guest) -> None:
        """A flood cannot keep nodes out: the stranger who has been here longest has to go."""
        if self._is_closed:
            guest.break_off("")
            return
        self._guests[guest.number] = self._strangers[guest.number] = guest
        if len(self._strangers) > _NUM_STRANGERS + len(self.settings.host_names):
            oldest = next(iter(self._strangers.values()))
            self.note("?", "too many connections at once to the coordination port: the oldest were closed")
            oldest.break_off("")

    def proved(self, guest: Guest, hello: Hello) -> None:
        del self._strangers[guest.number]
        self.listener.on_arrived(guest.number, hello)

    def left(self, guest: Guest) -> None:
        self._guests.pop(guest.number, None)
        self._strangers.pop(guest.number, None)

    def note(self, address: str, text: str) -> None:
        """Once for each address: a stranger who keeps trying must not fill the log."""
        if (address, text) not in self._noted and len(self._noted) < _MAX_NOTED:
            self._noted.add((address, text))
            self.listener.log(text if address == "?" else f"coordination port: {address} {text}")


class Guest(Connection):
    """One connection: Challenge, Hello, and then the frames of a node."""

    def __init__(self, number: int, reception: Reception) -> None:
        super().__init__()
        self.number = number
        self.is_leaving = False
        self._reception = reception
        self._key = reception.settings.key
        self._challenge = encode(
            Challenge(PROTOCOL, reception.instance, secrets.token_hex(16), self._key is not None)
        )
        self._seal: Seal | None = None
        self._patience: asyncio.TimerHandle | None = None

    def tell(self, message: Down) -> None:
        self.send(encode(message) if self._seal is None else self._seal.seal(encode(message)))

    def finish(self, linger_s: float) -> None:
        self.is_leaving = True
        super().finish(linger_s)

    def opened(self) -> None:
        timeout_s = self._reception.settings.hello_timeout_s
        self._patience = self._loop.call_later(
            timeout_s, self._turn_away, f"did not say who it is within {timeout_s:g} s"
        )
        self._reception.entered(self)
        self.send(self._challenge)

    def on_line(self, line: bytes) -> None:
        if self._seal is None:
            self._greet(line)
        else:
            self._hear(self._seal, line)

    def closed(self, reason: str) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._reception.left(self)
        if self._seal is not None:
            self._reception.listener.on_left(self.number, reason)
        elif self._rest:
            self._note_garbage(self._rest)

    def break_off(self, reason: str) -> None:
        if reason and self._seal is None:
            self._note(reason.replace("it sent", "sent"))
            self._rest = b""
        super().break_off(reason)

    # -- saying hello

    def _greet(self, line: bytes) -> None:
        host = self._reception.settings.host
        try:
            message = decode(self._unproven(line))
        except ProtocolError:
            self._note_garbage(line)
            self._turn_away("")
            return
        match message:
            case Hello(protocol) if protocol != PROTOCOL:
                self._refuse(f"speaks protocol {protocol}", refusals.other_protocol(PROTOCOL, host))
            case Hello():
                self._admit(line, message)
            case Goodbye(reason):
                self._note(f"did not join: {printable(reason)}")
                self._turn_away("")
            case _:
                self._note_garbage(line)
                self._turn_away("")

    def _unproven(self, line: bytes) -> bytes:
        try:
            return unsealed(line)
        except SealError:
            return line

    def _admit(self, line: bytes, hello: Hello) -> None:
        host = self._reception.settings.host
        key = None if self._key is None else session_key(self._key, self._challenge, hello.nonce)
        seal = Seal(key, sends=Direction.DOWN)
        try:
            is_proven = seal.open(line) == encode(hello)
        except SealError:
            is_proven = False
        if is_proven:
            if self._patience is not None:
                self._patience.cancel()
            self._seal = seal
            self._reception.proved(self, hello)
        elif self._key is None:
            self._refuse("sealed its hello, but there is no job key here", refusals.no_key_here(host))
        elif self._unproven(line) == line:
            self._refuse("has no job key", refusals.no_key(host))
        else:
            self._refuse("has another job key", refusals.wrong_key(host))

    def _refuse(self, text: str, refusal: Rejected) -> None:
        self._note(f"{text}; it was refused")
        self.tell(refusal)
        self.finish(LINGER_S)

    def _turn_away(self, text: str) -> None:
        if text:
            self._note(text)
        self._rest = b""
        super().break_off(text)

    # -- a node's frames

    def _hear(self, seal: Seal, line: bytes) -> None:
        try:
            message = decode(seal.open(line))
        except SealError:
            # whoever put it into the stream, the node itself will go on with the frame that is awaited
            self._note("sent a frame that its seal does not fit; it was ignored")
            return
        except ProtocolError as error:
            self.break_off(f"it sent something else than a node does: {error}")
            return
        self._obey(message)

    def _obey(self, message: Message) -> None:
        if isinstance(message, (Ended, Ping, Goodbye)):
            self._reception.listener.on_heard(self.number, message)
        else:
            self.break_off(f"it sent a {type(message).__name__}, which a node does not")

    def _note(self, text: str) -> None:
        self._reception.note(self.address, text)

    def _note_garbage(self, data: bytes) -> None:
        self._note(f"sent something else than a node does: {data[:40]!r}")
        self._rest = b""
