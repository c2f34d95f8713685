"""Where DeepSpeed defines `get_accelerator`."""

from dslaunch.compat.accelerator import get_accelerator, set_accelerator

__all__ = ["get_accelerator", "set_accelerator"]
