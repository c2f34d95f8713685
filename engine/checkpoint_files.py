"""Files of a checkpoint: written beside, renamed into place, checked before they are read. No torch.

A checkpoint `<dir>/<tag>` is written as `<dir>/.<tag>.saving` and renamed when complete. Replacing a tag
moves the old one to `<dir>/.<tag>.replaced` for the moment between two renames; whoever finds only that one
reads it. `<dir>/latest` names the newest complete tag and is itself replaced by a rename.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.ops.crc32 import crc32

_READ_BYTES = 1 << 18  # stays in a core's own cache while it is summed


@dataclass(frozen=True, slots=True)
class FileSum:
    """Size and CRC-32 of a file: against torn, lost and flipped bytes, not against people."""

    num_bytes: int
    crc32: int


def checked_tag(tag: str) -> str:
    """`tag`, or CheckpointError if it cannot be the name of a directory."""
    if not tag or tag.startswith(".") or "/" in tag or "\0" in tag:
        raise CheckpointError(f"the tag {tag!r} cannot name a directory", "use letters, digits, - and _")
    return tag


def saving_dir(save_dir: Path, tag: str) -> Path:
    """Where a checkpoint is while it is being written."""
    return save_dir / f".{tag}.saving"


def fresh_dir(path: Path) -> None:
    """Make `path` an empty directory; what a killed save has left there goes."""
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)


def write(path: Path, content: bytes) -> FileSum:
    """Write a small file and force it to disk; returns its size and checksum."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return FileSum(len(content), crc32(content))


def flush(path: Path) -> None:
    """Force a written file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def file_sum(path: Path) -> FileSum:
    """Size and checksum of what `path` holds now."""
    checksum, num_bytes = 0, 0
    block = bytearray(_READ_BYTES)
    view = memoryview(block)
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(block):
            checksum = crc32(view[:read], checksum)
            num_bytes += read
    return FileSum(num_bytes, checksum)


def check(path: Path, expected: FileSum) -> None:
    """CheckpointError naming `path` unless it holds exactly what was written."""
    if not path.is_file():
        raise missing(path)
    num_bytes = path.stat().st_size
    if num_bytes != expected.num_bytes:
        raise CheckpointError(
            f"checkpoint file {path} is damaged: {num_bytes} bytes, {expected.num_bytes} were written",
            DAMAGED_HINT,
        )
    if file_sum(path) != expected:
        raise CheckpointError(f"checkpoint file {path} is damaged: its checksum differs", DAMAGED_HINT)


def missing(path: Path) -> CheckpointError:
    """The error for a file that is not there."""
    return CheckpointError(f"checkpoint file {path} is missing", DAMAGED_HINT)


def commit(save_dir: Path, tag: str, save_latest: bool) -> Path:
    """Rename the complete checkpoint into place, then point `latest` at it; returns its directory."""
    final, replaced = save_dir / tag, save_dir / f".{tag}.replaced"
    _flush_dir(saving_dir(save_dir, tag))
    if final.exists():
        if replaced.exists():
            shutil.rmtree(replaced)
        final.rename(replaced)
    saving_dir(save_dir, tag).rename(final)
    _flush_dir(save_dir)
    if replaced.exists():
        shutil.rmtree(replaced)
    if save_latest:
        fresh = save_dir / ".latest.saving"
        write(fresh, tag.encode())
        fresh.replace(save_dir / "latest")
        _flush_dir(save_dir)
    return final


def newest_tag(load_dir: Path) -> str | None:
    """The tag `latest` names; None where there is no such file."""
    try:
        return (load_dir / "latest").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def find(load_dir: Path, tag: str) -> Path | None:
    """The directory of the complete checkpoint `tag`; None where it is not."""
    for candidate in (load_dir / tag, load_dir / f".{tag}.replaced"):
        if candidate.is_dir():
            return candidate
    return None


def no_such_tag(load_dir: Path, tag: str) -> CheckpointError:
    """The error for a tag that is not there; it lists those that are."""
    present = tags(load_dir)
    return CheckpointError(
        f"there is no checkpoint {tag} in {load_dir}",
        f"tags there: {', '.join(present)}" if present else "no checkpoint is there",
    )


def saved_at(load_dir: Path, tag: str) -> int:
    """When the checkpoint `tag` was saved, by its files: nanoseconds; 0 where it is not."""
    directory = find(load_dir, tag)
    times = [] if directory is None else [path.stat().st_mtime_ns for path in directory.iterdir()]
    return max(times, default=0)


def tags(load_dir: Path) -> list[str]:
    """The checkpoints that were put into place in `load_dir`, whole or damaged since, by name."""
    found = {path.parent.name for path in load_dir.glob("*/manifest.json")}
    found |= {path.parent.name for path in load_dir.glob("*/*_model_states.pt")}
    hidden = {name for name in found if name.startswith(".")}
    replaced = {name[1 : -len(".replaced")] for name in hidden if name.endswith(".replaced")}
    return sorted((found - hidden) | replaced)


def is_checkpoint(directory: Path) -> bool:
    """Whether `directory` is itself a checkpoint, ours or DeepSpeed's."""
    return (directory / "manifest.json").is_file() or any(directory.glob("*_model_states.pt"))


def clear_remains(save_dir: Path, in_use: Collection[Path]) -> None:
    """Remove what killed saves have left in `save_dir`, but for the directories `in_use`."""
    for path in save_dir.glob(".*.saving"):
        if path.is_dir() and path not in in_use:
            shutil.rmtree(path, ignore_errors=True)
    for path in save_dir.glob(".*.replaced"):
        if (save_dir / path.name[1 : -len(".replaced")]).is_dir():  # its successor is in place
            shutil.rmtree(path, ignore_errors=True)


def remove_old(save_dir: Path, keep_last: int, newest: str) -> None:
    """Remove all but the last `keep_last` checkpoints saved with the default tag; never `newest`."""
    named = [path for path in save_dir.glob("global_step*/manifest.json") if _has_default_tag(path.parent)]
    named.sort(key=lambda path: (path.parent.name == newest, path.stat().st_mtime_ns))
    for path in named[:-keep_last]:
        removed = saving_dir(save_dir, path.parent.name)  # half removed, it is a remain like any other
        path.parent.rename(removed)
        shutil.rmtree(removed)


def _has_default_tag(directory: Path) -> bool:
    return directory.name.removeprefix("global_step").isdecimal()


DAMAGED_HINT = "load another tag, or copy the file again from where it was saved"


def _flush_dir(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
