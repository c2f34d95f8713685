"""Where DeepSpeed defines it."""

from dslaunch.engine.flops_profiler import get_model_profile

__all__ = ["get_model_profile"]
