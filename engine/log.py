"""The engine's one logger. Rank 0 speaks; the other ranks only warn about themselves."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("dslaunch.engine")
_level = logging.NOTSET  # the last that `start` set


def start(level: int = logging.INFO) -> None:
    """Make INFO lines visible: a handler on stderr, unless the script configured logging itself.

    A level that the script has set on the logger stands, unless the config asks for one.
    """
    global _level
    if logger.level == _level or level != logging.INFO:
        logger.setLevel(level)
        _level = level
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] %(message)s"))
        logger.addHandler(handler)


def say(rank: int, message: str) -> None:
    """Log `message` at INFO on rank 0, marked as DeepSpeed marks its lines."""
    if rank == 0:
        logger.info("[Rank 0] %s", message)


def warn(rank: int, message: str) -> None:
    """Log `message` at WARNING on rank 0."""
    if rank == 0:
        logger.warning("[Rank 0] %s", message)
