"""The last words of a stream."""

from __future__ import annotations

TAIL_BYTES = 8 * 1024


class Tail:
    """Keeps the last TAIL_BYTES fed to it."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._is_cut = False

    def feed(self, chunk: bytes) -> None:
        """Add a chunk; older bytes fall off the front."""
        self._data += chunk[-TAIL_BYTES:]
        self._is_cut |= max(len(chunk), len(self._data)) > TAIL_BYTES
        if len(self._data) > 2 * TAIL_BYTES:
            del self._data[:-TAIL_BYTES]

    def text(self) -> str:
        """What is kept, as text. A character cut in two at the front is left out."""
        data = bytes(self._data[-TAIL_BYTES:])
        if self._is_cut:
            cut = 0
            while cut < min(3, len(data)) and data[cut] & 0xC0 == 0x80:
                cut += 1
            data = data[cut:]
        return data.decode("utf-8", "replace")
