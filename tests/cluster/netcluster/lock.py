"""One at a time: an exclusive lock between processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on a file, made where it is missing. Its holder may unlink it, and its folder."""
    while True:
        fd = _opened(path)
        if fd is None:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(fd, path):
                yield
                return
        finally:
            os.close(fd)


def _opened(path: Path) -> int | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # the folder went away in between
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return None


def _is_at(fd: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.stat(path))
    return False
