"""Ranges in a GPU profiler."""

from dslaunch.compat.words import instrument_w_nvtx

__all__ = ["instrument_w_nvtx"]
