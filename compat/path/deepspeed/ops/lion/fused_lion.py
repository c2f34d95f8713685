"""Where DeepSpeed defines it."""

from dslaunch.compat.optimizers import FusedLion

__all__ = ["FusedLion"]
