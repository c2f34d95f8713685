"""State dicts ready for torch.save."""

from dslaunch.compat.state_dicts import clone_tensors_for_torch_save

__all__ = ["clone_tensors_for_torch_save"]
