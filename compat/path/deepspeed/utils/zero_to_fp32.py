"""A checkpoint's weights in fp32, of this engine's and of DeepSpeed's own checkpoints."""

from dslaunch.compat.zero_files import get_model_state_file, get_optim_files
from dslaunch.engine.fp32_weights import (
    convert_zero_checkpoint_to_fp32_state_dict,
    get_fp32_state_dict_from_zero_checkpoint,
    load_state_dict_from_zero_checkpoint,
)

__all__ = [
    "convert_zero_checkpoint_to_fp32_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint",
    "get_model_state_file",
    "get_optim_files",
    "load_state_dict_from_zero_checkpoint",
]
