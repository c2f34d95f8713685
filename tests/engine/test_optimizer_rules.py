"""Every rule on flat shards against torch.optim, and the optimizers a config can name."""

from __future__ import annotations

import inspect

import pytest
import torch

from dslaunch.engine.config import OptimizerConfig
from dslaunch.engine.config_optimizer import TORCH_ELEMENTWISE, TORCH_OTHERS, optimizer_spec
from dslaunch.engine.errors import ConfigError
from dslaunch.engine.ops.lion import LionStep
from dslaunch.engine.ops.shard import Shard
from dslaunch.engine.optimizer_rules import states_of, step_of, step_shards_
from dslaunch.engine.optimizer_torch import TorchStep, torch_hyperparameters
from dslaunch.engine.whole_tensors import LambRule, MuonRule

CASES = [
    ("AdamW", {"lr": 0.1, "weight_decay": 0.1, "betas": [0.8, 0.9]}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1, "adam_w_mode": False}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("RMSprop", {"lr": 0.1, "momentum": 0.5, "centered": True}),
    ("RMSprop", {"weight_decay": 0.1}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8}),
    ("Adamax", {"betas": [0.8, 0.9]}),
    ("RAdam", {"lr": 0.1, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("Rprop", {"lr": 0.1}),
    ("NAdam", {"lr": 0.1, "momentum_decay": 0.1}),
    ("ASGD", {"lr": 0.1, "t0": 3, "lambd": 0.1}),
]


@pytest.mark.parametrize(("name", "params"), CASES)
def test_flat_shards_step_as_torch_steps_tensors(name: str, params: dict[str, object]) -> None:
    torch.manual_seed(0)
    spec = optimizer_spec(OptimizerConfig(name, params))
    group = torch_hyperparameters(spec) if spec.rule == "torch" else dict(spec.hyperparameters)
    param = torch.nn.Parameter(torch.randn(37))
    theirs = getattr(torch.optim, name)([param], **{k: v for k, v in params.items() if k != "adam_w_mode"})
    shards = [
        Shard(
            param.detach()[part].clone(),
            tuple(
                torch.full((part.stop - part.start,), start)
                for start in states_of(spec.rule, name, group).values()
            ),
            torch.zeros(part.stop - part.start),
            None,
        )
        for part in (slice(0, 20), slice(20, 37))
    ]
    for step in range(1, 8):
        gradient = torch.randn(37)
        param.grad = gradient * 0.5
        theirs.step()
        shards[0].grad.copy_(gradient[:20])
        shards[1].grad.copy_(gradient[20:])
        rule = step_of(spec.rule, name, dict(group), step)
        assert not isinstance(rule, LambRule | MuonRule)
        step_shards_(rule, shards, torch.tensor(0.5))
        if name != "ASGD":  # which goes on with the last step's rate for one more step
            group["lr"] = theirs.param_groups[0]["lr"] = float(theirs.param_groups[0]["lr"]) * 0.9
    flat = torch.cat([shard.master for shard in shards])
    torch.testing.assert_close(flat, param.detach(), rtol=1e-5, atol=1e-6)


def test_lion() -> None:
    """Two steps of the paper's algorithm 2 by hand."""
    spec = optimizer_spec(OptimizerConfig("Lion", {"lr": 0.1, "betas": [0.9, 0.5], "weight_decay": 0.1}))
    assert list(states_of(spec.rule, spec.name, spec.hyperparameters)) == ["exp_avg"]
    shard = Shard(torch.tensor([1.0, -2.0]), (torch.zeros(2),), torch.tensor([3.0, -4.0]), None)
    rules = [step_of(spec.rule, spec.name, spec.hyperparameters, step) for step in (1, 2)]
    assert isinstance(rules[0], LionStep)
    assert isinstance(rules[1], LionStep)
    step_shards_(rules[0], [shard])
    torch.testing.assert_close(shard.master, torch.tensor([0.99 - 0.1, -1.98 + 0.1]))
    torch.testing.assert_close(shard.states[0], torch.tensor([1.5, -2.0]))
    shard.grad.copy_(torch.tensor([-20.0, 0.0]))
    step_shards_(rules[1], [shard])
    # 0.9 * 1.5 - 0.1 * 20 < 0 and 0.9 * -2 < 0: both go up
    torch.testing.assert_close(shard.master, torch.tensor([0.89, -1.88]) * 0.99 + 0.1)


def test_a_step_that_overflowed_changes_nothing() -> None:
    spec = optimizer_spec(OptimizerConfig("RMSprop", {}))
    shard = Shard(torch.ones(2), (torch.zeros(2),), torch.ones(2), None)
    rule = step_of(spec.rule, spec.name, torch_hyperparameters(spec), 1)
    assert isinstance(rule, TorchStep)
    step_shards_(rule, [shard], None, torch.tensor(1.0))
    assert torch.equal(shard.master, torch.ones(2))


@pytest.mark.parametrize(
    ("name", "params", "what"),
    [
        ("SGD", {"nesterov": True}, "optimizer.params.nesterov needs a momentum and no dampening"),
        ("SGD", {"betas": [0.1, 0.2]}, "unknown key optimizer.params.betas"),
        ("Lion", {"eps": 1e-8}, "unknown key optimizer.params.eps"),
        ("Adagrad", {"maximize": True}, "optimizer.params.maximize: True is not supported by Adagrad here"),
        ("RMSprop", {"alfa": 0.9}, "unknown key optimizer.params.alfa"),
        (
            "RMSprop",
            {"alpha": -1},
            "optimizer.params: torch.optim.RMSprop refuses them: Invalid alpha value: -1",
        ),
        ("Muon", {"ns_method": "svd"}, "optimizer.params.ns_method expects gram or standard but got 'svd'"),
        (
            "Muon",
            {"per_head_muon": True},
            "optimizer.params.per_head_muon: True is not supported by Muon here",
        ),
        ("LBFGS", {}, "optimizer.type: LBFGS is not supported: it needs a closure"),
    ],
)
def test_refusals(name: str, params: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        torch_hyperparameters(optimizer_spec(OptimizerConfig(name, params)))
    assert caught.value.what == what


def test_every_optimizer_of_torch_has_an_answer() -> None:
    theirs = {
        name
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)
    }
    named = {"Adam", "AdamW", "Adagrad", "SGD", "Muon"}
    assert theirs - {"Optimizer"} <= {*TORCH_ELEMENTWISE, *TORCH_OTHERS, *named}
