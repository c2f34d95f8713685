"""`--save_pid`: DeepSpeed's `/tmp/<pid>.deepspeed`, there while the job runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dslaunch.launcher.errors import UsageError


@contextlib.contextmanager
def pid_file(*, wanted: bool, folder: Path = Path("/tmp")) -> Iterator[None]:
    """Holds the file, with this process's pid in it. Raises UsageError where it cannot be made."""
    if not wanted:
        yield
        return
    path = folder / f"{os.getpid()}.deepspeed"
    try:
        # whoever else may write to the folder must not lead us to another file
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UsageError(f"--save_pid: cannot make {path}: {error.strerror}", "remove it") from error
    with os.fdopen(fd, "w") as file:
        file.write(f"{os.getpid()}\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
