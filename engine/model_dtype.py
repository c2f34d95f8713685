"""The dtype of a model that was built in bf16 while its config says nothing of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from dslaunch.engine.config import EngineConfig


def following(settings: EngineConfig, model: torch.nn.Module, names_gradients: bool) -> EngineConfig:
    """`settings`, in bf16 where all trained parameters are and no other precision is asked for.

    DeepSpeed takes such models as they are, too. Gradients are in bf16 then, unless the config names their
    dtype (`names_gradients`). Models in fp16 are refused later: their loss has to be scaled.
    """
    if settings.dtype != "fp32" or settings.autocast.enabled:
        return settings
    if {param.dtype for param in model.parameters() if param.requires_grad} != {torch.bfloat16}:
        return settings
    said = 'the model is in bf16, and is trained in it; write "bf16": {"enabled": true} to say so'
    gradients = settings.grad_accum_dtype if names_gradients else "bf16"
    return replace(settings, dtype="bf16", grad_accum_dtype=gradients, warnings=(*settings.warnings, said))
