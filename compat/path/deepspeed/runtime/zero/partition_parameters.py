"""Where DeepSpeed defines `zero.Init` and what belongs to it."""

import torch

from dslaunch.compat.accelerator import get_accelerator
from dslaunch.compat.zero_names import ZeroParamType, is_zero_param, zero_wrapper_for_fp_tensor_constructor
from dslaunch.engine.zero import (
    GatheredParameters,
    Init,
    ZeroParamStatus,
    register_external_parameter,
    unregister_external_parameter,
)

partitioned_param_data_shape = [0]
_orig_torch_tensor = torch.tensor
_orig_torch_empty = torch.empty
_orig_torch_zeros = torch.zeros
_orig_torch_ones = torch.ones
_orig_torch_full = torch.full
_orig_torch_arange = torch.arange
_orig_torch_eye = torch.eye
_orig_torch_randn = torch.randn

__all__ = [
    "GatheredParameters",
    "Init",
    "ZeroParamStatus",
    "ZeroParamType",
    "get_accelerator",
    "is_zero_param",
    "register_external_parameter",
    "unregister_external_parameter",
    "zero_wrapper_for_fp_tensor_constructor",
]
