"""The numbers of DeepSpeed's schedules, step by step."""

from __future__ import annotations

import math

import pytest
import torch

from dslaunch.engine.config import SchedulerConfig
from dslaunch.engine.errors import ConfigError
from dslaunch.engine.lr_schedules import WarmupLR, build_scheduler


def optimizer(*rates: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates])


def rates(kind: str, params: dict[str, object], num_steps: int, start: float = 1e-3) -> list[float]:
    """The rate each optimizer step runs at, the schedule stepped after every one."""
    group = optimizer(start)
    schedule = build_scheduler(SchedulerConfig(kind, params), group)
    found = []
    for _ in range(num_steps):
        found.append(group.param_groups[0]["lr"])
        schedule.step()
    return found


def test_log_warmup_runs_two_steps_at_the_lowest_rate() -> None:
    found = rates("WarmupLR", {"warmup_max_lr": 1e-3, "warmup_num_steps": 5}, 8)
    assert found == pytest.approx([0, 0, 0.000431, 0.000683, 0.000861, 0.001, 0.001, 0.001], abs=5e-7)


def test_linear_warmup() -> None:
    params: dict[str, object] = {"warmup_min_lr": 0.1, "warmup_max_lr": 0.5, "warmup_num_steps": 4}
    found = rates("WarmupLR", {**params, "warmup_type": "linear"}, 7)
    assert found == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5])


def test_warmup_takes_each_groups_own_rate() -> None:
    group = optimizer(1.0, 3.0)
    schedule = WarmupLR(group, warmup_num_steps=2)
    for _ in range(3):
        schedule.step()
    assert [g["lr"] for g in group.param_groups] == [1.0, 3.0]
    assert schedule.get_last_lr() == [1.0, 3.0]


def test_one_warmup_step_counts_as_two() -> None:
    assert rates("WarmupLR", {"warmup_num_steps": 1}, 4) == pytest.approx([0, 0, 1e-3, 1e-3])


def test_decay_is_linear_to_the_end() -> None:
    params: dict[str, object] = {"total_num_steps": 6, "warmup_num_steps": 2, "warmup_max_lr": 1.0}
    found = rates("WarmupDecayLR", {**params, "warmup_type": "linear"}, 9)
    assert found == pytest.approx([0, 0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0])


def test_cosine() -> None:
    params: dict[str, object] = {"total_num_steps": 6, "warmup_num_steps": 2, "warmup_type": "linear"}
    found = rates("WarmupCosineLR", {**params, "cos_min_ratio": 0.1}, 7, start=2.0)
    ratios = [0, 0, 0.5] + [0.1 + 0.9 * (1 + math.cos(math.pi * k / 4)) / 2 for k in (1, 2, 3, 4)]
    assert found == pytest.approx([2.0 * ratio for ratio in ratios])


def test_last_rate_before_the_first_step() -> None:
    schedule = WarmupLR(optimizer(1.0))
    with pytest.raises(AssertionError, match="need to call step"):
        schedule.get_last_lr()


def test_state_is_the_iteration() -> None:
    group = optimizer(1.0)
    schedule = WarmupLR(group, warmup_num_steps=9)
    for _ in range(4):
        schedule.step()
    assert schedule.state_dict() == {"last_batch_iteration": 3}
    other = WarmupLR(optimizer(1.0), warmup_num_steps=9)
    other.load_state_dict(schedule.state_dict())
    other.step()
    schedule.step()
    assert other.get_last_lr() == schedule.get_last_lr()


@pytest.mark.parametrize(
    ("kind", "params", "what"),
    [
        ("OneCycle", {}, "scheduler.params.cycle_min_lr is missing: OneCycle needs it"),
        ("WarmupLR", {"warmup_steps": 3}, "unknown key scheduler.params.warmup_steps"),
        (
            "WarmupDecayLR",
            {},
            "scheduler.params.total_num_steps is missing: WarmupDecayLR needs it",
        ),
        (
            "WarmupLR",
            {"warmup_num_steps": 0},
            "scheduler.params.warmup_num_steps: expects a positive integer but got 0",
        ),
        (
            "WarmupLR",
            {"warmup_type": "cosine"},
            "scheduler.params.warmup_type: expects log or linear but got 'cosine'",
        ),
        (
            "WarmupLR",
            {"warmup_num_steps": "auto"},
            'scheduler.params.warmup_num_steps: "auto" is only known to frameworks that fill it in '
            "(the Hugging Face Trainer)",
        ),
    ],
)
def test_refusals(kind: str, params: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_scheduler(SchedulerConfig(kind, params), optimizer(1.0))
    assert caught.value.what == what
