"""The agent's end of the wire: frames in on one descriptor, frames out on another, never blocking."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from dslaunch.launcher.wire import Decoder, Dropped, Message, Stack, encode, encode_output, encode_stack

_READ_BYTES = 1 << 16
_MAX_BACKLOG_BYTES = 64 << 20
"""Output beyond this is dropped and counted: a full way to the launcher must not block a rank."""


class LinkClosedError(Exception):
    """The launcher, or the way to it, is gone."""


class Link:
    """Frames to and from the launcher."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
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
        return bool(self._backlog)

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
        """Queue a rank's output, or count it as dropped where the backlog is full. Raises LinkClosedError."""
        if self._backlog_bytes > _MAX_BACKLOG_BYTES:
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

    def flush(self) -> None:
        """Write what the descriptor takes now. Raises LinkClosedError."""
        num_sent = 0
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
