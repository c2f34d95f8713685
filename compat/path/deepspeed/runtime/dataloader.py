"""Iterating without end, and the engine's loader."""

from dslaunch.engine.dataloader import RepeatingLoader
from dslaunch.engine.dataloader import TrainingDataLoader as DeepSpeedDataLoader

__all__ = ["DeepSpeedDataLoader", "RepeatingLoader"]
