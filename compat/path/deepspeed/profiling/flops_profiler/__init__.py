"""What a model computes."""

from dslaunch.compat.unsupported import Missing
from dslaunch.engine.flops_profiler import get_model_profile

_missing = Missing("profiling.flops_profiler", "set flops_profiler.enabled in the config")
FlopsProfiler = _missing.type("FlopsProfiler")

__all__ = ["FlopsProfiler", "get_model_profile"]
