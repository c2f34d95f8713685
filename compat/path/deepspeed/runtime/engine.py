"""The engine's class, for isinstance() and types."""

from dslaunch.engine.engine import Engine as DeepSpeedEngine
from dslaunch.engine.initialize import OptimizerInput as DeepSpeedOptimizerCallable
from dslaunch.engine.initialize import SchedulerInput as DeepSpeedSchedulerCallable

__all__ = ["DeepSpeedEngine", "DeepSpeedOptimizerCallable", "DeepSpeedSchedulerCallable"]
