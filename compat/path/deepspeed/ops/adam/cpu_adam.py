"""Where DeepSpeed defines it."""

from dslaunch.compat.optimizers import DeepSpeedCPUAdam

__all__ = ["DeepSpeedCPUAdam"]
