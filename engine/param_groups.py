"""Optimizer parameter groups: from the config, the script's groups, or its torch optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import torch

from dslaunch.engine.config import OptimizerConfig
from dslaunch.engine.config_keys import Kind
from dslaunch.engine.config_read import as_kind, auto_value, unknown_key
from dslaunch.engine.errors import ConfigError, EngineError

ParamGroup = dict[str, object]
ModelParameters = Iterable[torch.nn.Parameter] | Iterable[Mapping[str, object]]

HYPERPARAMETERS: Mapping[str, object] = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "bias_correction": True,
    "adam_w_mode": True,
}
_KINDS: Mapping[str, Kind] = {
    "lr": "number",
    "eps": "number",
    "weight_decay": "number",
    "bias_correction": "flag",
    "adam_w_mode": "flag",
    "torch_adam": "flag",
    "amsgrad": "flag",
    "set_grad_none": "flag",
    "fused": "flag",
    "foreach": "flag",
    "fp32_optimizer_states": "flag",
}


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
    defaults = _config_hyperparameters(config)
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


def _config_hyperparameters(config: OptimizerConfig) -> dict[str, object]:
    name = config.type.lower()
    if name not in ("adam", "adamw"):
        raise ConfigError(
            f"optimizer.type: {config.type} is not supported yet",
            "use AdamW (or Adam with adam_w_mode false)",
        )
    found = dict(HYPERPARAMETERS)
    known = [*HYPERPARAMETERS, *_KINDS, "max_grad_norm"]
    for key, value in config.params.items():
        path = f"optimizer.params.{key}"
        if key not in known:
            raise unknown_key("optimizer.params.", key, known)
        if value == "auto":
            raise auto_value(path)
        if key == "max_grad_norm":
            raise ConfigError(f"{path} is refused: clipping is not the optimizer's", "set gradient_clipping")
        if key == "betas":
            found[key] = _betas(path, value)
        elif value is not None:
            checked = as_kind(path, value, _KINDS[key])
            if key in HYPERPARAMETERS:
                found[key] = checked
            elif key in ("amsgrad",) and checked:
                raise ConfigError(f"{path}: AMSGrad is not supported", "remove the key")
    # "AdamW" is decoupled whatever adam_w_mode says; "Adam" is AdamW too unless told otherwise. torch_adam
    # only chooses an implementation in DeepSpeed: the engine has one.
    if name == "adamw":
        found["adam_w_mode"] = True
    for key in ("lr", "eps", "weight_decay"):
        if cast(float, found[key]) < 0:
            raise ConfigError(f"optimizer.params.{key}: {found[key]} has to be at least 0", f"correct {key}")
    return found


def _betas(path: str, value: object) -> tuple[float, float]:
    if isinstance(value, list | tuple) and len(value) == 2:
        beta1, beta2 = (float(cast(float, as_kind(path, beta, "number"))) for beta in value)
        if 0 <= beta1 < 1 and 0 <= beta2 < 1:
            return beta1, beta2
    raise ConfigError(f"{path}: expects two numbers in [0, 1) but got {value!r}", "write [0.9, 0.999]")


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
