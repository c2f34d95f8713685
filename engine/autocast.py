"""`torch_autocast`: what the model's forward runs in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from dslaunch.engine.config_values import AutocastConfig

_OFF: AbstractContextManager[object] = nullcontext()


def forward_precision(config: AutocastConfig, device: torch.device) -> AbstractContextManager[object]:
    """torch.autocast on `device` where the config asks for it."""
    dtype = torch.float16 if config.low_dtype == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype) if config.enabled else _OFF
