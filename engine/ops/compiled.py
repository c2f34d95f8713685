"""Steps and norms as operators of torch.library: what torch.compile puts into its graphs.

Elsewhere nobody calls them: an operator written in Python costs tens of microseconds a call, the kernels' own
calls a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, fields
from typing import Any

import torch

from dslaunch.engine.ops import norm
from dslaunch.engine.ops.adagrad import AdagradStep
from dslaunch.engine.ops.adamw import AdamWStep
from dslaunch.engine.ops.lamb import LambStep
from dslaunch.engine.ops.lion import LionStep
from dslaunch.engine.ops.sgd import SgdMomentumStep, SgdStep
from dslaunch.engine.ops.shard import Control, Rule, Shard
from dslaunch.engine.ops.step import step_batch_

_AnyRule = type[AdamWStep | LionStep | AdagradStep | SgdStep | SgdMomentumStep | LambStep]
_RULES: dict[str, _AnyRule] = {
    rule.kernel: rule for rule in (AdamWStep, LionStep, AdagradStep, SgdStep, SgdMomentumStep, LambStep)
}


def numbers_of(rule: Rule) -> list[float]:
    """All that a rule holds but its step and its learning rate."""
    return [float(getattr(rule, setting.name)) for setting in _settings(_RULES[rule.kernel])]


@torch.library.custom_op(
    "dslaunch::optimizer_step", mutates_args=("masters", "states", "params", "counters"), device_types=None
)
def optimizer_step(
    rule: str,
    numbers: Sequence[float],
    lr: float,
    lr_tensor: torch.Tensor | None,
    masters: Sequence[torch.Tensor],
    states: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    counters: Sequence[torch.Tensor],
    has_param: Sequence[int],
    counter_of: Sequence[int],
    streams: Sequence[int],
    grad_scale: torch.Tensor | None,
    found_inf: torch.Tensor | None,
) -> None:
    """One step of N tensors by the rule whose kernel is `rule`.

    `numbers` are numbers_of that rule; `lr_tensor`, where there is one, takes the place of `lr`. `states` are
    those of the first of N masters, of the second, ...; `params` those of bf16 or fp16, which masters have
    whose `has_param` is 1. `counters` are the distinct step counters (none: the rule has none), and
    `counter_of` says each master's, as `streams` do those of stochastic rounding.
    """
    on_gpu = bool(counters) and counters[0].is_cuda
    if counters and not on_gpu and found_inf is not None and found_inf.item():
        return
    low = iter(params)
    num_states = len(states) // max(len(masters), 1)
    batches: dict[tuple[object, ...], list[Shard]] = {}
    for i, (master, grad) in enumerate(zip(masters, grads, strict=True)):
        param = next(low) if has_param[i] else None
        own = tuple(states[i * num_states : (i + 1) * num_states])
        shard = Shard(master, own, grad, param, stream=streams[i])
        dtypes = (master.device, grad.dtype, None if param is None else param.dtype)
        batches.setdefault((counter_of[i] if counters else 0, *dtypes), []).append(shard)
    lr_there = lr_tensor if lr_tensor is not None and lr_tensor.is_cuda else None
    if lr_tensor is not None and lr_there is None:
        lr = float(lr_tensor)
    counted: set[object] = set()
    for (number, *_), shards in batches.items():
        assert isinstance(number, int)
        counter = counters[number] if counters else None
        step = 0
        if counter is not None and not on_gpu:
            if number not in counted:
                counter += 1
            step = int(counter)
        control = Control(
            grad_scale, found_inf, counter if on_gpu else None, number not in counted, lr=lr_there
        )
        step_batch_(_rule_of(rule, numbers, step, lr), shards, control)
        counted.add(number)


@torch.library.custom_op("dslaunch::sum_of_squares", mutates_args=())
def sum_of_squares(grads: Sequence[torch.Tensor]) -> torch.Tensor:
    """See norm.sum_of_squares."""
    return norm.sum_of_squares(grads)


@sum_of_squares.register_fake
def _(grads: Sequence[torch.Tensor]) -> torch.Tensor:
    device = grads[0].device if grads else torch.device("cpu")
    return torch.empty((), dtype=torch.float64, device=device)


def _rule_of(name: str, numbers: Sequence[float], step: int, lr: float) -> Rule:
    """The inverse of numbers_of; `step` where the rule has one."""
    made = _RULES[name]
    values: dict[str, Any] = {
        setting.name: bool(number) if setting.type == "bool" else number
        for setting, number in zip(_settings(made), numbers, strict=True)
    }
    if any(setting.name == "step" for setting in fields(made)):
        values["step"] = max(step, 1)
    return made(lr=lr, **values)


def _settings(rule: _AnyRule) -> list[Field[Any]]:
    return [setting for setting in fields(rule) if setting.name not in ("step", "lr")]
