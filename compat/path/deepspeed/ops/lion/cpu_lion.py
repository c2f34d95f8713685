"""Where DeepSpeed defines it."""

from dslaunch.compat.optimizers import DeepSpeedCPULion

__all__ = ["DeepSpeedCPULion"]
