"""Where compiled kernels lie: each named by what it was made of, and renamed into place whole.

Any number of processes may look, build and publish at once: a name stands for one content, and the last
rename wins. There are no lock files, so none can be left behind.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "prebuilt"  # what a wheel brings; a checkout has none


def cache_folder() -> Path:
    """`$DSLAUNCH_CACHE/ops`, else `dslaunch/ops` in `$XDG_CACHE_HOME` or ~/.cache."""
    if chosen := os.environ.get("DSLAUNCH_CACHE"):
        return Path(chosen) / "ops"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "dslaunch" / "ops"


def source_key(*further: str) -> str:
    """A digest of every kernel source, this machine's architecture, and `further` (flags, versions)."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update("\0".join([platform.system(), platform.machine(), *further]).encode())
    return digest.hexdigest()[:20]


def find(name: str) -> Path | None:
    """The artifact of that name, prebuilt or in the cache."""
    for folder in (PREBUILT, cache_folder()):
        if (path := folder / name).is_file():
            return path
    return None


def publish(name: str, content: bytes, folder: Path | None = None) -> Path:
    """Write `content` beside its place in `folder` (the cache) and rename it there.

    Where the cache cannot be written, it goes to a folder of this user's in the system's temporary one.
    """
    try:
        return _publish(name, content, folder or cache_folder())
    except OSError:
        if folder is not None:
            raise
        return _publish(name, content, Path(tempfile.mkdtemp(prefix="dslaunch-ops-")))


def _publish(name: str, content: bytes, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, folder / name)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return folder / name


def without(names: Sequence[str]) -> list[str]:
    """Those of `names` that are neither prebuilt nor cached."""
    return [name for name in names if find(name) is None]
