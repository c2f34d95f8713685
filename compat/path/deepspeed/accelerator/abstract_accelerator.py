"""For isinstance()."""

from dslaunch.compat.accelerator import Accelerator as DeepSpeedAccelerator

__all__ = ["DeepSpeedAccelerator"]
