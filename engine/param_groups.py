"""Optimizer parameter groups: from the config, the script's groups, or its torch optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import torch

from dslaunch.engine.config import OptimizerConfig
from dslaunch.engine.config_optimizer import optimizer_spec
from dslaunch.engine.errors import EngineError

ParamGroup = dict[str, object]
ModelParameters = Iterable[torch.nn.Parameter] | Iterable[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The groups to train, hyperparameters filled in; `client` is the script's optimizer if they are its."""

    groups: list[ParamGroup]
    client: torch.optim.Optimizer | None = None


def plan_groups(
    config: OptimizerConfig | None,
    client: torch.optim.Optimizer | None,
    model_parameters: ModelParameters | None,
    model: torch.nn.Module,
) -> GroupPlan | None:
    """The groups of trainable parameters; None where no optimizer is named (evaluation).

    A client optimizer wins over the config, as in DeepSpeed. Frozen parameters are left out of their groups.
    """
    if client is not None:
        return GroupPlan(_client_groups(client), client)
    if config is None:
        return None
    defaults = optimizer_spec(config).hyperparameters
    given = list(model_parameters if model_parameters is not None else model.parameters())
    groups: list[ParamGroup]
    if given and isinstance(given[0], Mapping):
        groups = [dict(cast(Mapping[str, object], group)) for group in given]
    else:
        groups = [{"params": given}]
    for number, group in enumerate(groups):
        if "params" not in group:
            raise EngineError(
                f"model_parameters[{number}] has no params", 'write {"params": [...], "lr": ...}'
            )
        for name, value in defaults.items():
            group.setdefault(name, value)
        group["params"] = _trainable(group["params"])
    return GroupPlan(groups)


def _trainable(params: object) -> list[torch.nn.Parameter]:
    found = [params] if isinstance(params, torch.Tensor) else list(cast("Iterable[object]", params))
    for param in found:
        if not isinstance(param, torch.nn.Parameter):
            raise EngineError(
                f"model_parameters holds {type(param).__name__}, not parameters", "pass model.parameters()"
            )
    return [param for param in cast("list[torch.nn.Parameter]", found) if param.requires_grad]


def _client_groups(client: torch.optim.Optimizer) -> list[ParamGroup]:
    """The script's own group dicts, so that a scheduler bound to them keeps steering the engine."""
    if type(client) not in (torch.optim.Adam, torch.optim.AdamW):
        raise EngineError(
            f"the optimizer {type(client).__name__} is not supported yet: only torch Adam and AdamW",
            "pass torch.optim.AdamW, or name the optimizer in the config",
        )
    if client.state:
        raise EngineError(
            "the optimizer has already stepped; its moments would be lost",
            "hand the optimizer to initialize before its first step",
        )
    for group in client.param_groups:
        for key in ("amsgrad", "maximize", "differentiable", "capturable"):
            if group.get(key):
                raise EngineError(f"the optimizer's {key} is not supported", f"create it with {key}=False")
        if isinstance(group["lr"], torch.Tensor):
            group["lr"] = float(group["lr"])
        group.setdefault("bias_correction", True)
        group["adam_w_mode"] = bool(group.get("decoupled_weight_decay", type(client) is torch.optim.AdamW))
        group["params"] = [param for param in group["params"] if param.requires_grad]
    return client.param_groups
