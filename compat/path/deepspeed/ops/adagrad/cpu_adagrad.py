"""Where DeepSpeed defines it."""

from dslaunch.compat.optimizers import DeepSpeedCPUAdagrad

__all__ = ["DeepSpeedCPUAdagrad"]
