"""The optimizer's class under DeepSpeed's name for it, for isinstance(): one class does all stages."""

from dslaunch.engine.optimizer import ShardedOptimizer as FP16_Optimizer

__all__ = ["FP16_Optimizer"]
