"""Real text that every machine has: the source files of the running Python's standard library."""

from __future__ import annotations

import sysconfig
import zlib
from pathlib import Path
from typing import Literal

import torch

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
_VALIDATION_SHARE = 10  # one file in ten


def load_text(split: Literal["train", "validation"]) -> torch.Tensor:
    """All bytes of the split's files, 1-D uint8; a file's name alone decides which split it is in."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [path.relative_to(root) for path in sorted(root.rglob("*.py"))]
    files = [path for path in files if _NOT_LIBRARY.isdisjoint(path.parts)]
    kept = [path for path in files if _is_validation(path) == (split == "validation")]
    return torch.frombuffer(bytearray().join((root / path).read_bytes() for path in kept), dtype=torch.uint8)


def sample_windows(text: torch.Tensor, shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """`shape` = [number of windows, bytes of each], int64, from random places of `text`."""
    starts = torch.randint(len(text) - shape[1] + 1, (shape[0], 1), generator=generator)
    return text[starts + torch.arange(shape[1])].long()


def _is_validation(path: Path) -> bool:
    return zlib.crc32(path.as_posix().encode()) % _VALIDATION_SHARE == 0
