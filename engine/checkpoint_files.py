"""Files of a checkpoint: written beside, renamed into place, checked before they are read. No torch.

A checkpoint `<dir>/<tag>` is written as `<dir>/.<tag>.saving` and renamed when complete. Replacing a tag
moves the old one to `<dir>/.<tag>.replaced` for the moment between two renames; whoever finds only that one
reads it. `<dir>/latest` names the newest complete tag and is itself replaced by a rename.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from dslaunch.engine.errors import CheckpointError

_READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class FileSum:
    """Size and SHA-256 of a file."""

    num_bytes: int
    sha256: str


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


def flush(path: Path) -> FileSum:
    """Force a written file to disk; returns its size and checksum."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return file_sum(path)


def file_sum(path: Path) -> FileSum:
    """Size and checksum of what `path` holds now."""
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
            num_bytes += len(block)
    return FileSum(num_bytes, digest.hexdigest())


def check(path: Path, expected: FileSum) -> None:
    """CheckpointError naming `path` unless it holds exactly what was written."""
    if not path.is_file():
        raise CheckpointError(f"checkpoint file {path} is missing", _DAMAGED_HINT)
    num_bytes = path.stat().st_size
    if num_bytes != expected.num_bytes:
        raise CheckpointError(
            f"checkpoint file {path} is damaged: {num_bytes} bytes, {expected.num_bytes} were written",
            _DAMAGED_HINT,
        )
    if file_sum(path) != expected:
        raise CheckpointError(f"checkpoint file {path} is damaged: its checksum differs", _DAMAGED_HINT)


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
        fresh.write_text(tag, encoding="utf-8")
        flush(fresh)
        fresh.replace(save_dir / "latest")
        _flush_dir(save_dir)
    return final


def newest_tag(load_dir: Path) -> str | None:
    """The tag `latest` names; None where there is no such file."""
    try:
        return (load_dir / "latest").read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def find(load_dir: Path, tag: str) -> Path:
    """The directory of the complete checkpoint `tag`; CheckpointError lists those that are there."""
    for candidate in (load_dir / tag, load_dir / f".{tag}.replaced"):
        if candidate.is_dir():
            return candidate
    present = sorted(path.parent.name for path in load_dir.glob("*/manifest.json"))
    raise CheckpointError(
        f"there is no checkpoint {tag} in {load_dir}",
        f"tags there: {', '.join(present)}" if present else "no checkpoint is there",
    )


_DAMAGED_HINT = "load another tag, or copy the file again from where it was saved"


def _flush_dir(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
