"""`deepspeed.utils.torch`: which torch this is."""

from __future__ import annotations

import torch


def required_torch_version(
    min_version: str | float | None = None, max_version: str | float | None = None
) -> bool:
    """Whether torch is at least `min_version` and at most `max_version`, both as in "2.4"."""
    found = _numbers(torch.__version__)
    least, most = (None if version is None else _numbers(version) for version in (min_version, max_version))
    return (least is None or found >= least) and (most is None or found[: len(most)] <= most)


def _numbers(version: str | float) -> tuple[int, ...]:
    release = str(version).partition("+")[0].partition("a")[0].partition("rc")[0]
    return tuple(int(part) for part in release.split(".") if part.isdigit())
