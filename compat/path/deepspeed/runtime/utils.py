"""Small things scripts take from DeepSpeed's runtime."""

from dslaunch.compat.state_dicts import move_to_device
from dslaunch.compat.tensors import clip_grad_norm_, see_memory_usage, set_random_seed

__all__ = ["clip_grad_norm_", "move_to_device", "see_memory_usage", "set_random_seed"]
