"""Where DeepSpeed defines it."""

from dslaunch.compat.optimizers import FusedAdam

__all__ = ["FusedAdam"]
