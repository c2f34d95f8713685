"""LAMB."""

from dslaunch.compat.optimizers import FusedLamb

__all__ = ["FusedLamb"]
