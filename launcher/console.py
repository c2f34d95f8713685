"""The only door to stdout and stderr: a thread writes, so that a slow terminal never holds the launcher."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

MAX_BACKLOG_BYTES = 64 << 20
"""Rank output that would wait beyond this is dropped and counted."""


class Console:
    """Queues bytes for descriptors 1 and 2 and writes them in order."""

    def __init__(self, max_backlog_bytes: int = MAX_BACKLOG_BYTES) -> None:
        self._max_backlog_bytes = max_backlog_bytes
        self._queue: deque[tuple[int, bytes]] = deque()
        self._backlog_bytes = 0
        self._num_dropped_lines = 0
        self._closing = False
        self._broken: set[int] = set()
        self.mirror: Callable[[int, bytes], None] | None = None
        """Gets all that is shown, and its descriptor."""
        self._changed = threading.Condition()
        self._writer = threading.Thread(target=self._write_all, name="console", daemon=True)
        self._writer.start()

    def write(self, fd: int, data: bytes) -> None:
        """Queue, whatever the backlog: for the launcher's own words."""
        if self.mirror is not None:
            self.mirror(fd, data)
        with self._changed:
            self._queue.append((fd, data))
            self._backlog_bytes += len(data)
            self._changed.notify()

    def say(self, text: str) -> None:
        """A line of the launcher's own, to stderr."""
        self.write(2, f"dslaunch: {text}\n".encode("utf-8", "surrogateescape"))

    def write_lines(self, fd: int, data: bytes) -> None:
        """Queue lines of ranks, or drop and count them where the terminal is too far behind."""
        if self._backlog_bytes > self._max_backlog_bytes:
            self._num_dropped_lines += data.count(b"\n")
            return
        if self._num_dropped_lines:
            note = f"dslaunch: {self._num_dropped_lines} lines were not shown, the terminal is too slow\n"
            self._num_dropped_lines = 0
            self.write(2, note.encode())
        self.write(fd, data)

    def close(self, timeout_s: float | None) -> None:
        """Wait until all is written, `timeout_s` at most."""
        if self._num_dropped_lines:
            self.write(2, f"dslaunch: {self._num_dropped_lines} lines were not shown\n".encode())
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._writer.join(timeout_s)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                fd, data = self._queue.popleft()
                while self._queue and self._queue[0][0] == fd and len(data) < 1 << 16:
                    data += self._queue.popleft()[1]
            self._write(fd, data)
            with self._changed:
                self._backlog_bytes -= len(data)

    def _write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view and fd not in self._broken:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                threading.Event().wait(0.01)
            except OSError:
                self._broken.add(fd)  # the reader is gone; the job goes on, its exit code tells the end
