"""The optimizer's class under DeepSpeed's name for it, for isinstance(): one class does all stages."""

from dslaunch.engine.optimizer import ShardedOptimizer as BF16_Optimizer

__all__ = ["BF16_Optimizer"]
