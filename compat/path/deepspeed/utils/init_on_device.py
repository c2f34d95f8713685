"""Building a model on a device."""

from dslaunch.compat.on_device import OnDevice

__all__ = ["OnDevice"]
