"""The chunks of one stdout, between the loop that receives them and the task that reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

HIGH_BYTES = 4 * 1024 * 1024
LOW_BYTES = 1024 * 1024


class OutputBuffer:
    """A queue of chunks, never copied or joined, that holds its source back while the reader is slow.

    `pause` is called when more than HIGH_BYTES wait, `resume` when the reader is down to LOW_BYTES.
    """

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause = pause
        self._resume = resume
        self._chunks: deque[bytes] = deque()
        self._num_bytes = 0
        self._paused = False
        self._ended = False
        self._discarding = False
        self._changed = asyncio.Event()

    def feed(self, chunk: bytes) -> None:
        """Queue a chunk for the reader."""
        if self._discarding or not chunk:
            return
        self._chunks.append(chunk)
        self._num_bytes += len(chunk)
        self._changed.set()
        if self._num_bytes > HIGH_BYTES and not self._paused and not self._ended:
            self._paused = True
            self._pause()

    def end(self) -> None:
        """No chunk follows; the reader still gets those that wait."""
        self._ended = True
        self._changed.set()

    def discard(self) -> None:
        """Drop what waits and what may still come, so that the source can run to its end."""
        self._discarding = True
        self._chunks.clear()
        self._num_bytes = 0
        self._let_flow()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks in the order they came, until the end."""
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._num_bytes -= len(chunk)
                if self._num_bytes <= LOW_BYTES:
                    self._let_flow()
                yield chunk
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    def _let_flow(self) -> None:
        if self._paused:
            self._paused = False
            if not self._ended:
                self._resume()
