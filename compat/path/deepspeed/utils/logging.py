"""The engine's one logger, and lines of chosen ranks."""

from dslaunch.compat.words import log_dist, print_rank_0
from dslaunch.engine.log import logger

__all__ = ["log_dist", "logger", "print_rank_0"]
