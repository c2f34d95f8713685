"""Where hyperparameters come from, and which optimizers are refused."""

from __future__ import annotations

import pytest
import torch

from dslaunch.engine.config import OptimizerConfig
from dslaunch.engine.errors import ConfigError, EngineError
from dslaunch.engine.param_groups import plan_groups


def model() -> torch.nn.Module:
    net = torch.nn.Linear(2, 2)
    net.bias.requires_grad_(False)
    return net


def hyperparameters(kind: str, **params: object) -> dict[str, object]:
    plan = plan_groups(OptimizerConfig(kind, params), None, None, model())
    assert plan is not None
    (group,) = plan.groups
    return {key: value for key, value in group.items() if key != "params"}


def test_defaults_are_deepspeeds() -> None:
    assert hyperparameters("AdamW") == {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "bias_correction": True,
        "adam_w_mode": True,
        "moment_dtype": torch.float32,  # our own
    }


@pytest.mark.parametrize(
    ("kind", "params", "decoupled"),
    [
        ("Adam", {}, True),
        ("adam", {"adam_w_mode": False}, False),
        ("Adam", {"torch_adam": True, "adam_w_mode": False}, False),
        ("ADAMW", {"adam_w_mode": False}, True),
    ],
)
def test_adam_means_adamw_unless_told(kind: str, params: dict[str, object], decoupled: bool) -> None:
    assert hyperparameters(kind, **params)["adam_w_mode"] is decoupled


def test_groups_keep_what_they_say_and_frozen_parameters_are_left_out() -> None:
    net = model()
    given = [{"params": [net.weight], "lr": 0.5}, {"params": net.bias, "weight_decay": 0.0}]
    plan = plan_groups(OptimizerConfig("AdamW", {"lr": 0.1, "weight_decay": 0.2}), None, given, net)
    assert plan is not None
    assert [(g["lr"], g["weight_decay"], g["params"]) for g in plan.groups] == [
        (0.5, 0.2, [net.weight]),
        (0.1, 0.0, []),
    ]
    assert given[0] == {"params": [net.weight], "lr": 0.5}


def test_muon_takes_matrices_and_leaves_the_rest_to_adam() -> None:
    net = torch.nn.ModuleDict({"embed": torch.nn.Embedding(3, 2), "norm": torch.nn.LayerNorm(2)})
    net["proj"], net["lm_head"] = torch.nn.Linear(2, 2), torch.nn.Linear(2, 3, bias=False)
    net["gate"] = torch.nn.Linear(2, 2, bias=False)
    net["gate"].weight.use_muon = False
    names = {id(param): name for name, param in net.named_parameters()}
    config = OptimizerConfig("Muon", {"lr": 0.1, "adam_lr": 0.2, "weight_decay": 0.3})
    given = [
        {"params": [p for p in net.parameters() if p.dim() > 1]},
        {"params": [p for p in net.parameters() if p.dim() == 1], "weight_decay": 0.0, "lr": 0.5},
    ]
    plan = plan_groups(config, None, given, net)
    assert plan is not None
    found = [
        ([names[id(p)] for p in g["params"]], g["use_muon"], g["lr"], g["weight_decay"])  # type: ignore[attr-defined]
        for g in plan.groups
    ]
    assert found == [
        (["proj.weight"], True, 0.1, 0.3),
        (["embed.weight", "lm_head.weight", "gate.weight"], False, 0.2, 0.3),
        (["norm.weight", "norm.bias", "proj.bias"], False, 0.5, 0.0),
    ]


def test_no_optimizer_is_evaluation() -> None:
    assert plan_groups(None, None, None, model()) is None


@pytest.mark.parametrize(
    ("kind", "params", "what"),
    [
        ("LBFGS", {}, "optimizer.type: LBFGS is not supported: it needs a closure"),
        ("Adam", {"lrr": 1}, "unknown key optimizer.params.lrr"),
        (
            "Adam",
            {"lr": "auto"},
            'optimizer.params.lr: "auto" is only known to frameworks that fill it in '
            "(the Hugging Face Trainer)",
        ),
        ("Adam", {"lr": "1e-3"}, "optimizer.params.lr: expects a number but got '1e-3'"),
        ("Adam", {"lr": -1}, "optimizer.params.lr: -1 has to be at least 0"),
        (
            "Adam",
            {"betas": [0.9, 1]},
            "optimizer.params.betas: expects two numbers in [0, 1) but got [0.9, 1]",
        ),
        ("Adam", {"betas": 0.9}, "optimizer.params.betas: expects two numbers in [0, 1) but got 0.9"),
        ("Adam", {"amsgrad": True}, "optimizer.params.amsgrad: True is not supported by Adam here"),
        (
            "Adam",
            {"max_grad_norm": 1},
            "optimizer.params.max_grad_norm is refused: clipping is not the optimizer's",
        ),
    ],
)
def test_config_refusals(kind: str, params: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_groups(OptimizerConfig(kind, params), None, None, model())
    assert caught.value.what == what


def stepped(net: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (
            lambda net: torch.optim.LBFGS([net.weight]),
            "the optimizer LBFGS cannot step shards: a trial step failed: "
            "LBFGS.step() missing 1 required positional argument: 'closure'",
        ),
        (
            lambda net: torch.optim.AdamW(net.parameters(), amsgrad=True),
            "the optimizer's amsgrad is not supported",
        ),
        (stepped, "the optimizer has already stepped; its moments would be lost"),
    ],
)
def test_client_refusals(make: object, what: str) -> None:
    net = model()
    with pytest.raises(EngineError) as caught:
        plan_groups(None, make(net), None, net)  # type: ignore[operator]
    assert caught.value.what == what


@pytest.mark.parametrize(("kind", "decoupled"), [(torch.optim.Adam, False), (torch.optim.AdamW, True)])
def test_client_groups_are_the_clients_own(kind: type[torch.optim.Adam], decoupled: bool) -> None:
    net = model()
    client = kind(net.parameters(), lr=0.3)
    plan = plan_groups(OptimizerConfig("Adam", {"lr": 9}), client, None, net)  # the client's wins
    assert plan is not None
    assert plan.groups[0] is client.param_groups[0]
    assert (plan.groups[0]["lr"], plan.groups[0]["adam_w_mode"]) == (0.3, decoupled)
    assert plan.groups[0]["params"] == [net.weight]


def test_parameters_must_be_parameters() -> None:
    with pytest.raises(EngineError, match="model_parameters holds str, not parameters"):
        plan_groups(OptimizerConfig("Adam"), None, ["weight"], model())  # type: ignore[list-item]
