"""zlib's CRC-32, by the CPU library where that is built: many times as fast. No torch."""

from __future__ import annotations

import ctypes
import functools
import os
import zlib
from pathlib import Path

from dslaunch.engine.ops import ahead, artifacts, build

_SHORT_BYTES = 1 << 14  # below, a call costs more than it saves


class Library:
    """The function in a built library; `width` in bytes, 64 or 16: what is multiplied at once."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.width = int(library.dslaunch_crc32_width())
        self._crc32 = library.dslaunch_crc32
        self._crc32.restype = ctypes.c_uint32
        self._crc32.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def crc32(self, data: memoryview, before: int) -> int:
        """As zlib.crc32, of writable memory. Lets go of the GIL."""
        start = ctypes.addressof(ctypes.c_char.from_buffer(data))
        return int(self._crc32(before, start, data.nbytes, self.width))


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """As zlib.crc32."""
    if isinstance(data, memoryview) and data.nbytes >= _SHORT_BYTES and not data.readonly:
        library = _library()
        if library is not None:
            return library.crc32(data, before)
    return zlib.crc32(data, before)


@functools.cache
def _library() -> Library | None:
    """The library, if somebody has built it; a checksum is no reason to."""
    if os.environ.get("DSLAUNCH_OPS") == "torch":
        return None
    ahead.finish()
    try:
        path = artifacts.find(build.cpu_name())
        library = None if path is None else Library(path)
    except (OSError, AttributeError):  # made for another machine: optimizer steps say so
        return None
    return library if library is not None and library.width else None
