"""The device this process trains on."""

from dslaunch.compat.accelerator import get_accelerator, set_accelerator

__all__ = ["get_accelerator", "set_accelerator"]
