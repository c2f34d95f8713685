"""A checkpoint's weights in fp32, of this engine's and of DeepSpeed's own checkpoints."""

from dslaunch.compat.unsupported import Missing
from dslaunch.engine.fp32_weights import (
    convert_zero_checkpoint_to_fp32_state_dict,
    get_fp32_state_dict_from_zero_checkpoint,
    load_state_dict_from_zero_checkpoint,
)

_missing = Missing("utils.zero_to_fp32", "call get_fp32_state_dict_from_zero_checkpoint")
get_model_state_file = _missing.function("get_model_state_file")
get_optim_files = _missing.function("get_optim_files")

__all__ = [
    "convert_zero_checkpoint_to_fp32_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint",
    "load_state_dict_from_zero_checkpoint",
]
