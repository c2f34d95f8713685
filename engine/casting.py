"""Casting what goes into a model, however nested."""

from __future__ import annotations

from typing import Any

import torch


def cast_floating(value: Any, dtype: torch.dtype) -> Any:
    """`value` with every floating tensor in it (in tuples, lists and dicts) as `dtype`."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: cast_floating(item, dtype) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(cast_floating(item, dtype) for item in value)
    return value
