"""From a parameter group to the rule that steps its shards. `S` elements of a rank's shard.

Elementwise rules step a flat shard [S] as they would step the tensors in it, so that the result does not
depend on how many ranks there are; those of whole_tensors.py look beyond the shard to the same end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch

from dslaunch.engine.config_optimizer import Rule as RuleName
from dslaunch.engine.ops.adagrad import AdagradStep
from dslaunch.engine.ops.adamw import AdamWStep
from dslaunch.engine.ops.lion import LionStep
from dslaunch.engine.ops.muon import Method
from dslaunch.engine.ops.sgd import SgdMomentumStep, SgdStep
from dslaunch.engine.ops.shard import Rule, Shard
from dslaunch.engine.ops.step import step_
from dslaunch.engine.optimizer_torch import TorchStep, torch_states
from dslaunch.engine.whole_tensors import LambRule, MuonRule

Group = Mapping[str, object]
AnyRule = Rule | TorchStep | LambRule | MuonRule
WHOLE_TENSOR_RULES = (LambRule, MuonRule)


def states_of(rule: RuleName, name: str, group: Group) -> dict[str, float]:
    """The states a shard of the group has beside its master, each [S], and the value each starts from.

    `name` is the optimizer's, which only rule "torch" asks for.
    """
    match rule:
        case "muon" if group["use_muon"]:
            return {"momentum_buffer": 0.0}
        case "adam" | "lamb" | "muon":
            return {"exp_avg": 0.0, "exp_avg_sq": 0.0}
        case "lion":
            return {"exp_avg": 0.0}
        case "adagrad":
            return {"sum": _number(group, "initial_accumulator_value")}
        case "sgd":
            return {"momentum_buffer": 0.0} if group["momentum"] else {}
        case "torch":
            return dict.fromkeys(torch_states(name, group), 0.0)


def state_dtype(group: Group) -> torch.dtype:
    """What states of the group are kept in."""
    return cast(torch.dtype, group.get("moment_dtype", torch.float32))


def is_elementwise(rule: RuleName, group: Group) -> bool:
    """Whether the group's shards can be stepped without a look beyond them."""
    return rule != "lamb" and not (rule == "muon" and group["use_muon"])


def splits_masters(rule: RuleName, group: Group, dtype: str) -> bool:
    """Whether masters of parameters of `dtype` are split where the group is stepped on its own device."""
    return dtype == "bfloat16" and rule != "torch" and is_elementwise(rule, group)


def step_of(rule: RuleName, name: str, group: Group, step: int) -> AnyRule:
    """Optimizer step `step` (from 1) with the group's hyperparameters as they are now."""
    match rule:
        case "lamb":
            return _lamb(group, step)
        case "muon" if group["use_muon"]:
            return _muon(group)
        case "adam" | "muon":
            beta1, beta2 = _betas(group)
            return AdamWStep(
                step,
                _number(group, "lr"),
                beta1,
                beta2,
                _number(group, "eps"),
                _number(group, "weight_decay"),
                bool(group["adam_w_mode"]),
                bool(group.get("bias_correction", True)),
            )
        case "lion":
            beta1, beta2 = _betas(group)
            return LionStep(_number(group, "lr"), beta1, beta2, _number(group, "weight_decay"))
        case "adagrad":
            return AdagradStep(
                step,
                _number(group, "lr"),
                _number(group, "lr_decay"),
                _number(group, "eps"),
                _number(group, "weight_decay"),
            )
        case "sgd":
            return _sgd(group, step)
        case "torch":
            return TorchStep(name, group, step)


def step_shards_(
    rule: Rule | TorchStep,
    shards: Sequence[Shard],
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
    num_threads: int | None = None,
) -> None:
    """`ops.step.step_`; rules that have no kernel anywhere go through torch.optim."""
    if not isinstance(rule, TorchStep):
        step_(rule, shards, grad_scale, found_inf, num_threads)
    elif found_inf is None or not found_inf.item():
        for shard in shards:
            rule.apply(shard, grad_scale)


def _sgd(group: Group, step: int) -> Rule:
    lr, weight_decay = _number(group, "lr"), _number(group, "weight_decay")
    momentum = _number(group, "momentum")
    if not momentum:
        return SgdStep(lr, weight_decay)
    return SgdMomentumStep(
        lr, weight_decay, momentum, _number(group, "dampening"), bool(group["nesterov"]), first=step == 1
    )


def _lamb(group: Group, step: int) -> LambRule:
    beta1, beta2 = _betas(group)
    correction = math.sqrt(1 - beta2**step) / (1 - beta1**step) if group["bias_correction"] else 1.0
    return LambRule(
        _number(group, "lr") * correction,
        beta1,
        beta2,
        _number(group, "eps"),
        _number(group, "weight_decay"),
        bool(group["eps_inside_sqrt"]),
        _number(group, "max_coeff"),
        _number(group, "min_coeff"),
    )


def _muon(group: Group) -> MuonRule:
    return MuonRule(
        _number(group, "lr"),
        _number(group, "momentum"),
        _number(group, "weight_decay"),
        bool(group["nesterov"]),
        int(_number(group, "ns_steps")),
        cast(Method, group["ns_method"]),
    )


def _number(group: Group, key: str) -> float:
    return float(cast(float, group[key]))


def _betas(group: Group) -> tuple[float, float]:
    return cast("tuple[float, float]", group["betas"])
