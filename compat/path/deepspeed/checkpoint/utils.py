"""State dicts ready for torch.save, and the names of DeepSpeed's own files."""

import os

from dslaunch.compat.state_dicts import clone_tensors_for_torch_save


def get_model_ckpt_name_for_rank(base_folder: str | os.PathLike[str], mp_rank_str: str) -> str:
    """Where DeepSpeed writes a model below stage 3; `dslaunchctl` and `zero_to_fp32` read such folders."""
    return os.path.join(base_folder, f"mp_rank_{mp_rank_str}_model_states.pt")


__all__ = ["clone_tensors_for_torch_save", "get_model_ckpt_name_for_rank"]
