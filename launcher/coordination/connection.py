"""Lines over one TCP connection, within bounds: what either end of the link has in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from dslaunch.launcher.coordination.addresses import explained
from dslaunch.launcher.coordination.protocol import MAX_LINE_BYTES


class Connection(asyncio.Protocol, ABC):
    """Whole lines in, whole lines out. `gone` is done when nothing is left of it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._reason = ""
        self._is_finished = False
        self._linger: asyncio.TimerHandle | None = None
        self.gone: asyncio.Future[None] = self._loop.create_future()

    @abstractmethod
    def opened(self) -> None:
        """It stands."""

    @abstractmethod
    def on_line(self, line: bytes) -> None:
        """A line came."""

    @abstractmethod
    def closed(self, reason: str) -> None:
        """It is no more. Comes once, after `opened`."""

    def send(self, line: bytes) -> None:
        if self._transport is not None and not self._is_finished and not self._transport.is_closing():
            self._transport.write(line + b"\n")

    def finish(self, linger_s: float) -> None:
        """Close it once what was sent has arrived; in any case after `linger_s`. Nothing more is heard."""
        if self._transport is None or self._is_finished or self._transport.is_closing():
            return
        self._is_finished = True
        # closing at once would reset a connection with unread data, and what was sent could be lost
        try:
            self._transport.write_eof()
        except OSError:  # reset already, and not noticed yet
            self._transport.abort()
            return
        self._linger = self._loop.call_later(linger_s, self._transport.abort)

    def break_off(self, reason: str) -> None:
        """Close it now."""
        if not self._reason:
            self._reason = reason
        self._is_finished = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def address(self) -> str:
        """The other side's, "?" where there is none."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(name[0]) if name else "?"

    def _is_open(self) -> bool:
        return not self._is_finished

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.opened()

    def data_received(self, data: bytes) -> None:
        if not self._is_open():
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._is_open():
                return
            if len(line) > MAX_LINE_BYTES:
                self._rest = line
                break
            self.on_line(line)
        if len(self._rest) > MAX_LINE_BYTES and self._is_open():
            self.break_off(f"it sent a line longer than {MAX_LINE_BYTES} bytes: {self._rest[:40]!r}...")

    def eof_received(self) -> bool:
        return False  # close this side as well

    def pause_writing(self) -> None:
        """Who does not read is not read from."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
        if not self._reason:
            self._reason = (
                "the connection was closed" if exc is None else f"the connection broke: {explained(exc)}"
            )
        self._is_finished = True
        if not self.gone.done():
            self.gone.set_result(None)
        self.closed(self._reason)
