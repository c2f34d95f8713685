"""Optimizers of torch.optim and of scripts on flat shards: elementwise ones, but for a count of steps.

They are slower than the engine's own: torch steps one shard at a time, with temporaries.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch

from dslaunch.engine.config_optimizer import OptimizerSpec
from dslaunch.engine.config_unknown import unknown_key
from dslaunch.engine.errors import ConfigError
from dslaunch.engine.ops.shard import Shard
from dslaunch.engine.optimizer_client import adopted, client_state, instance

# A GPU's step counters would have to be tensors there; several tensors at once is nothing for one shard.
_SETTLED = {"foreach": False, "capturable": False, "differentiable": False}


@dataclass(frozen=True, slots=True)
class TorchStep:
    """One step of `torch.optim.<name>` with a group's hyperparameters; `step` counts from 1."""

    name: str
    group: Mapping[str, object]
    step: int

    def apply(self, shard: Shard, grad_scale: torch.Tensor | None) -> None:
        """The step in place on `shard`, as torch does it; the gradient times `grad_scale` (None is 1)."""
        states, g = shard.states, shard.grad.to(shard.master.dtype)
        param = torch.nn.Parameter(shard.master)  # shares the memory
        client = adopted(self.name)
        if client is None:
            optimizer = _make(self.name, param, self.group)
            names = torch_states(self.name, self.group)
            count = torch.tensor(float(self.step - 1))
            rest = {"step": count, **_scalars_after(self.name, optimizer.param_groups[0], self.step - 1)}
        else:
            optimizer = instance(client, self.group, [param])
            names, rest = client_state(client, self.group, self.step - 1)
        if self.step > 1:
            optimizer.state[param] = {**rest, **dict(zip(names, states, strict=True))}
        param.grad = g.clone() if grad_scale is None else g * grad_scale
        with torch.enable_grad():
            optimizer.step()
        for name, kept in zip(names, states, strict=True):
            found = optimizer.state[param][name]
            if found is not kept:
                kept.copy_(found)
        if shard.param is not None:
            shard.param.copy_(shard.master)


def torch_hyperparameters(spec: OptimizerSpec) -> dict[str, object]:
    """All of the optimizer's hyperparameters, torch's defaults filled in; ConfigError on a wrong one."""
    known = _known(spec.name)
    for key in spec.hyperparameters:
        if key not in known:
            raise unknown_key("optimizer.params.", key, known)
    try:
        defaults: dict[str, object] = _make(spec.name, _probe(), spec.hyperparameters).defaults
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"optimizer.params: torch.optim.{spec.name} refuses them: {error}",
            f"see torch.optim.{spec.name}",
            "optimizer.params",
        ) from None
    return dict(defaults)


def torch_states(name: str, group: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the elementwise states, which depend on the hyperparameters."""
    client = adopted(name)
    if client is not None:
        return client_state(client, group, 0)[0]
    param = _probe()
    optimizer = _make(name, param, group)
    param.grad = torch.zeros_like(param)
    with torch.enable_grad():
        optimizer.step()
    return tuple(
        key
        for key, value in optimizer.state[param].items()
        if isinstance(value, torch.Tensor) and value.shape == param.shape
    )


def _scalars_after(name: str, group: Mapping[str, Any], step: int) -> dict[str, torch.Tensor]:
    """What some keep beside their elements, as it follows from `step` (ASGD's too, from today's lr)."""
    match name:
        case "NAdam":
            product = _nadam_product(group["betas"][0], group["momentum_decay"], step)
            return {"mu_product": torch.tensor(product)}
        case "ASGD":
            eta = group["lr"] / (1 + group["lambd"] * group["lr"] * step) ** group["alpha"]
            return {"eta": torch.tensor(eta), "mu": torch.tensor(1 / max(1, step - group["t0"]))}
        case _:
            return {}


@lru_cache(maxsize=4)
def _nadam_product(beta1: float, decay: float, step: int) -> float:
    product = 1.0
    for number in range(1, step + 1):
        product *= beta1 * (1 - 0.5 * 0.96 ** (number * decay))
        if product == 0:
            break
    return product


def _make(name: str, param: torch.nn.Parameter, group: Mapping[str, object]) -> torch.optim.Optimizer:
    known = _known(name)
    options = {key: value for key, value in {**group, **_SETTLED}.items() if key in known}
    kind: Any = getattr(torch.optim, name)
    return cast(torch.optim.Optimizer, kind([param], **options))


def _known(name: str) -> list[str]:
    parameters = inspect.signature(getattr(torch.optim, name)).parameters
    return [key for key in parameters if key != "params"]


def _probe() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(2))
