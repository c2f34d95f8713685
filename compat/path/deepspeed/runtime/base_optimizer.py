"""The optimizer's class, for isinstance() and types."""

from dslaunch.engine.optimizer import ShardedOptimizer as DeepSpeedOptimizer

ZeROOptimizer = DeepSpeedOptimizer

__all__ = ["DeepSpeedOptimizer", "ZeROOptimizer"]
