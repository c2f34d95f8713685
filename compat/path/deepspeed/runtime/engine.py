"""The engine's class, for isinstance() and types."""

from dslaunch.engine.engine import Engine as DeepSpeedEngine
from dslaunch.engine.initialize import SchedulerInput

DeepSpeedSchedulerCallable = SchedulerInput

__all__ = ["DeepSpeedEngine", "DeepSpeedSchedulerCallable"]
