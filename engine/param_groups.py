"""Optimizer parameter groups: from the config, the script's groups, or its torch optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import torch

from dslaunch.engine.buckets import shape_of
from dslaunch.engine.config import OptimizerConfig
from dslaunch.engine.config_optimizer import TORCH_ELEMENTWISE, Rule, optimizer_spec
from dslaunch.engine.errors import EngineError
from dslaunch.engine.optimizer_client import adopt
from dslaunch.engine.optimizer_torch import torch_hyperparameters

ParamGroup = dict[str, object]
ModelParameters = Iterable[torch.nn.Parameter] | Iterable[Mapping[str, object]]

_CLIENT_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Adam", "AdamW", "FusedAdamW"), "adam"),
    **dict.fromkeys(("Adagrad", "FusedAdagrad"), "adagrad"),
    **dict.fromkeys(("SGD", "FusedSGD"), "sgd"),
    "FusedLion": "lion",
    **dict.fromkeys(TORCH_ELEMENTWISE, "torch"),
}


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The groups to train, hyperparameters filled in; `client` is the script's optimizer if they are its.

    `rule` is how they are stepped, `name` the optimizer's. `is_untested`: it is the script's own;
    `is_exact`: shards end as whole tensors would.
    """

    groups: list[ParamGroup]
    client: torch.optim.Optimizer | None = None
    rule: Rule = "adam"
    name: str = "AdamW"
    is_untested: bool = False
    is_exact: bool = True


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
        kind = _kind_of(client)
        rule = None if kind is None else _CLIENT_RULES.get(kind.__name__)
        if kind is None or rule is None:
            groups = _own_groups(client)
            name, exact = adopt(client)
            return GroupPlan(groups, client, "torch", name, True, exact)
        return GroupPlan(_client_groups(client, rule), client, rule, kind.__name__)
    if config is None:
        return None
    spec = optimizer_spec(config)
    defaults = torch_hyperparameters(spec) if spec.rule == "torch" else spec.hyperparameters
    given = list(model_parameters if model_parameters is not None else model.parameters())
    if given and isinstance(given[0], Mapping):
        groups = [dict(cast(Mapping[str, object], group)) for group in given]
    else:
        groups = [{"params": given}]
    for number, group in enumerate(groups):
        if "params" not in group:
            raise EngineError(
                f"model_parameters[{number}] has no params", 'write {"params": [...], "lr": ...}'
            )
        group["params"] = _trainable(group["params"])
    if spec.rule == "muon":
        groups = _muon_halves(groups, defaults, model)
    for group in groups:
        for name, value in defaults.items():
            group.setdefault(name, value)
        if spec.rule == "adam":
            group["moment_dtype"] = _moment_dtype(group["moment_dtype"])
    return GroupPlan(groups, None, spec.rule, spec.name)


def _moment_dtype(value: object) -> torch.dtype:
    """From a config's name, or as it is: the memory's layout, which no checkpoint changes."""
    dtypes: dict[object, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
    dtype = dtypes.get(value, value)
    if dtype not in dtypes.values():
        raise EngineError(
            f"a parameter group's moment_dtype expects fp32 or bf16 but got {value!r}", "write bf16"
        )
    return cast(torch.dtype, dtype)


def _muon_halves(
    groups: Iterable[ParamGroup], defaults: Mapping[str, object], model: torch.nn.Module
) -> list[ParamGroup]:
    """Every group as its matrices, which Muon steps, and the rest, which AdamW does; each with its own `lr`.

    As in DeepSpeed, embeddings and heads ("embed", "lm_head" in the name) count as the rest. A script that
    sets `param.use_muon` decides itself.
    """
    names = {id(param): name.lower() for name, param in model.named_parameters()}

    def is_matrix(param: torch.nn.Parameter) -> bool:
        tagged = getattr(param, "use_muon", None)
        if tagged is not None:
            return bool(tagged) and len(shape_of(param)) >= 2
        name = names.get(id(param), "")
        return len(shape_of(param)) >= 2 and "embed" not in name and "lm_head" not in name

    halves: list[ParamGroup] = []
    for group in groups:
        params = cast("list[torch.nn.Parameter]", group["params"])
        for use_muon, lr in ((True, "muon_lr"), (False, "adam_lr")):
            half = [param for param in params if is_matrix(param) is use_muon]
            if half:
                halves.append({"lr": defaults[lr], **group, "params": half, "use_muon": use_muon})
    return halves


def _trainable(params: object) -> list[torch.nn.Parameter]:
    found = [params] if isinstance(params, torch.Tensor) else list(cast("Iterable[object]", params))
    for param in found:
        if not isinstance(param, torch.nn.Parameter):
            raise EngineError(
                f"model_parameters holds {type(param).__name__}, not parameters", "pass model.parameters()"
            )
    return [param for param in cast("list[torch.nn.Parameter]", found) if param.requires_grad]


def is_tested(client: torch.optim.Optimizer) -> bool:
    """Whether it is one of torch's own or of the fused ones of `engine.ops`, which need no trial."""
    kind = _kind_of(client)
    return kind is not None and kind.__name__ in _CLIENT_RULES


def _kind_of(client: torch.optim.Optimizer) -> type[torch.optim.Optimizer] | None:
    """The known class whose step the optimizer has; a subclass that steps otherwise has none."""
    kind = type(client)
    for base in kind.__mro__:
        if base.__module__.startswith(("torch.optim.", "dslaunch.engine.ops.")):
            same = all(_plain(kind, name) is _plain(base, name) for name in ("step", "rule"))
            return base if same else None
    return None


def _plain(kind: type, name: str) -> object:
    """A method without the profiler's hook that torch wraps around it."""
    method = getattr(kind, name, None)
    return inspect.unwrap(method) if callable(method) else method


def _own_groups(client: torch.optim.Optimizer) -> list[ParamGroup]:
    """The script's own group dicts, so that a scheduler bound to them keeps steering the engine."""
    if any(int(state.get("step", 1)) > 0 for state in client.state.values()):
        raise EngineError(
            "the optimizer has already stepped; its moments would be lost",
            "hand the optimizer to initialize before its first step",
        )
    for group in client.param_groups:
        group["params"] = [param for param in group["params"] if param.requires_grad]
    return client.param_groups


def _client_groups(client: torch.optim.Optimizer, rule: Rule) -> list[ParamGroup]:
    """The same of an optimizer whose step the engine has."""
    for group in _own_groups(client):
        for key in ("amsgrad", "maximize", "differentiable", "capturable"):
            if group.get(key):
                raise EngineError(f"the optimizer's {key} is not supported", f"create it with {key}=False")
        if isinstance(group["lr"], torch.Tensor):
            group["lr"] = float(group["lr"])
        if rule == "adam":
            decoupled = group.get("decoupled_weight_decay", type(client) is torch.optim.AdamW)
            group.setdefault("bias_correction", True)
            group["adam_w_mode"] = bool(decoupled)
    return client.param_groups
