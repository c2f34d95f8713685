"""A group's step as torch.compile traces it: lists of tensors and one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from dslaunch.engine.ops import compiled
from dslaunch.engine.ops.shard import PARAM_DTYPES, Rule

NUM_LISTS = 10  # that lists_of makes


def lists_of(
    rule: Rule,
    params: Sequence[torch.Tensor],
    states: Sequence[dict[str, torch.Tensor]],
    names: Sequence[str],
    streams: Sequence[int],
) -> tuple[list[Any], ...]:
    """The rule's kernel, and arguments of compiled.optimizer_step as that names them, for `params`.

    `names` are those of the rule's states. Equal step counters become one: torch has moved a shared one to
    the GPU parameter by parameter, where it is to be there.
    """
    counters: list[torch.Tensor] = []
    counter_of: list[int] = []
    numbers: dict[float, int] = {}
    for state in states:
        if "step" in state:
            number = numbers.setdefault(float(state["step"]), len(counters))
            if number == len(counters):
                counters.append(state["step"])
            state["step"] = counters[number]
            counter_of.append(number)
    low = [p.dtype in PARAM_DTYPES for p in params]
    return (
        [rule.kernel],
        compiled.numbers_of(rule),
        [state["master"] if is_low else p for p, state, is_low in zip(params, states, low, strict=True)],
        [state[name] for state in states for name in names],
        [p.grad for p in params],
        [p for p, is_low in zip(params, low, strict=True) if is_low],
        counters,
        list(map(int, low)),
        counter_of,
        list(streams),
    )


def step(
    kernel: str,
    lists: Sequence[list[Any]],
    group: Mapping[str, object],
    scale: torch.Tensor | None,
    found_inf: torch.Tensor | None,
) -> None:
    """The operator's call; `lists` without the first."""
    numbers, masters, states, grads, params, counters, has_param, counter_of, streams = lists
    if group.get("maximize"):
        scale = torch.full((), -1.0, device=masters[0].device) if scale is None else -scale
    lr = cast("float | torch.Tensor", group["lr"])
    number, tensor = (0.0, lr) if isinstance(lr, torch.Tensor) else (lr, None)
    tensors = (masters, states, grads, params, counters)
    compiled.optimizer_step(
        kernel, numbers, number, tensor, *tensors, has_param, counter_of, streams, scale, found_inf
    )
