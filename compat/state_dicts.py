"""Tensors inside dicts, lists and tuples, and groups of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def clone_tensors_for_torch_save(item: Any, device: torch.device | str | None = "cpu") -> Any:
    """`item` with every tensor copied to `device` (None: its own), so that none drags its storage along."""
    return _mapped(item, lambda tensor: tensor.detach().clone().to(device or tensor.device))


def move_to_device(
    item: Any, device: torch.device | str, criterion_func: Callable[[torch.Tensor], bool] = lambda _: True
) -> Any:
    """`item` with every tensor that `criterion_func` accepts on `device`."""
    return _mapped(item, lambda tensor: tensor.to(device) if criterion_func(tensor) else tensor)


def as_groups(
    param_groups: Mapping[str, Any] | Sequence[Mapping[str, Any]], max_group_size: int | None = None
) -> list[dict[str, Any]]:
    """The groups as a list: none is split, for no parameter belongs to experts that ranks share out."""
    groups = [param_groups] if isinstance(param_groups, Mapping) else param_groups
    return [dict(group) for group in groups]


def _mapped(item: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, (list, tuple)):
        changed = [_mapped(value, change) for value in item]
        return type(item)(*changed) if hasattr(item, "_fields") else type(item)(changed)
    if isinstance(item, Mapping):
        return type(item)({key: _mapped(value, change) for key, value in item.items()})  # type: ignore[call-arg]
    return item
