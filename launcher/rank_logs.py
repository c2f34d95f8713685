"""One file for each rank: all that it wrote, whole lines, both streams as they came."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.streams import Lines

MAX_FILE_BYTES = 1 << 30
"""A file that has grown so far becomes `NAME.1`, in place of an older one, and a new one is begun."""


class RankLogs:
    """Files in one folder, opened when a rank first writes."""

    def __init__(
        self, folder: Path, name: Callable[[int], str], max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """`name(rank)` gives the file's name. Raises UsageError where the folder cannot be written to."""
        self._folder = folder
        self._name = name
        self._max_file_bytes = max_file_bytes
        self._files: dict[int, BinaryIO] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".dslaunch").touch()
            (folder / ".dslaunch").unlink()
        except OSError as error:
            raise UsageError(
                f"cannot write logs to {folder}: {error.strerror}", "choose another folder"
            ) from error

    def write(self, what: Lines) -> None:
        """Raises OSError where the disk is full or gone."""
        if not what.lines:
            return
        file = self._files.get(what.rank) or self._open(what.rank)
        file.write(b"".join(line + b"\n" for line in what.lines))
        file.flush()
        if file.tell() >= self._max_file_bytes:
            file.close()
            path = self.path(what.rank)
            path.replace(path.with_name(f"{path.name}.1"))
            del self._files[what.rank]

    def path(self, rank: int) -> Path:
        return self._folder / self._name(rank)

    def _open(self, rank: int) -> BinaryIO:
        self._files[rank] = file = self.path(rank).open("ab")
        return file

    def close(self) -> None:
        for file in self._files.values():
            file.close()
