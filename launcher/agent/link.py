"""The agent's end of the wire: frames in on one descriptor, frames out on another, never blocking."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from dslaunch.launcher.wire import Decoder, Dropped, Message, Stack, encode, encode_output, encode_stack

_READ_BYTES = 1 << 16
_MAX_BACKLOG_BYTES = 64 << 20
"""Beyond this the way to the launcher is full: see `Link.send_output`."""


class LinkClosedError(Exception):
    """The launcher, or the way to it, is gone."""


class Link:
    """Frames to and from the launcher.

    `max_dropless_bytes` may wait to be sent before output is dropped and counted; it may be set.
    """

    def __init__(self, read_fd: int, write_fd: int, max_backlog_bytes: int = _MAX_BACKLOG_BYTES) -> None:
        self.max_backlog_bytes = max_backlog_bytes
        self.max_dropless_bytes: float = max_backlog_bytes
        self.read_fd = read_fd
        self.write_fd = write_fd
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        self._decoder = Decoder()
        self._backlog: list[bytes] = []
        self._backlog_bytes = 0
        self._dropped: dict[int, int] = {}

    @property
    def has_way_down(self) -> bool:
        """Whether stdin can tell anything: /dev/null, which some tools give, is always at its end."""
        status = os.fstat(self.read_fd)
        return not (stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == 1)

    @property
    def has_backlog(self) -> bool:
        return self._backlog_bytes > 0

    @property
    def is_full(self) -> bool:
        return self._backlog_bytes > self.max_backlog_bytes

    @property
    def has_room(self) -> bool:
        """Well before it is full again."""
        return self._backlog_bytes <= self.max_backlog_bytes // 2

    def receive(self) -> Iterator[Message]:
        """The frames that have come. Raises LinkClosedError at EOF, WireError on garbage."""
        while True:
            try:
                data = os.read(self.read_fd, _READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                raise LinkClosedError(str(error)) from error
            if not data:
                raise LinkClosedError("stdin ended")
            yield from self._decoder.feed(data)

    def send(self, message: Message) -> None:
        """Queue a frame and send what goes out now. Raises LinkClosedError."""
        self._queue(encode_stack(message) if isinstance(message, Stack) else encode(message))

    def send_output(self, rank: int, stream: int, data: bytes) -> None:
        """Queue a rank's output, or count it as dropped where too much waits. Raises LinkClosedError."""
        if self._backlog_bytes > self.max_dropless_bytes:
            self._dropped[rank] = self._dropped.get(rank, 0) + len(data)
            self.flush()
            return
        if rank in self._dropped:
            self._queue(encode(Dropped(rank, self._dropped.pop(rank))))
        self._queue(encode_output(rank, stream, data))

    def send_dropped(self) -> None:
        """Say what was dropped and not said yet. Raises LinkClosedError."""
        for rank, num_bytes in self._dropped.items():
            self._queue(encode(Dropped(rank, num_bytes)))
        self._dropped.clear()

    def _queue(self, data: bytes) -> None:
        self._backlog.append(data)
        self._backlog_bytes += len(data)
        self.flush()

    def flush(self) -> int:
        """Write what the descriptor takes now, and say how many bytes. Raises LinkClosedError."""
        num_sent = 0
        before_bytes = self._backlog_bytes
        try:
            for data in self._backlog:
                written = os.write(self.write_fd, data)
                self._backlog_bytes -= written
                if written < len(data):
                    self._backlog[num_sent] = data[written:]
                    break
                num_sent += 1
        except BlockingIOError:
            pass
        except OSError as error:
            raise LinkClosedError(str(error)) from error
        finally:
            del self._backlog[:num_sent]
        return before_bytes - self._backlog_bytes
