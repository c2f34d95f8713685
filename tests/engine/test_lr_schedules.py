"""The numbers of DeepSpeed's schedules, step by step."""

from __future__ import annotations

import argparse
import inspect
import logging
import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dslaunch.engine as deepspeed
from dslaunch.engine.config import SchedulerConfig
from dslaunch.engine.config_scheduler import TORCH_REFUSED, TORCH_SCHEDULERS
from dslaunch.engine.errors import ConfigError
from dslaunch.engine.lr_arguments import scheduler_section
from dslaunch.engine.lr_schedules import (
    VALID_LR_SCHEDULES,
    OneCycle,
    WarmupCosineLR,
    WarmupLR,
    build_scheduler,
)


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
    assert rates("WarmupLR", {"warmup_num_steps": 0}, 4) == pytest.approx([0, 0, 1e-3, 1e-3])


def test_decay_is_linear_to_the_end() -> None:
    params: dict[str, object] = {"total_num_steps": 6, "warmup_num_steps": 2, "warmup_max_lr": 1.0}
    found = rates("WarmupDecayLR", {**params, "warmup_type": "linear"}, 9)
    assert found == pytest.approx([0, 0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0])


def test_cosine() -> None:
    params: dict[str, object] = {"total_num_steps": 6, "warmup_num_steps": 2, "warmup_type": "linear"}
    found = rates("WarmupCosineLR", {**params, "cos_min_ratio": 0.1}, 7, start=2.0)
    ratios = [0, 0, 0.5] + [0.1 + 0.9 * (1 + math.cos(math.pi * k / 4)) / 2 for k in (1, 2, 3, 4)]
    assert found == pytest.approx([2.0 * ratio for ratio in ratios])


def test_last_rate_before_any_was_set() -> None:
    assert WarmupLR(optimizer(1.0), warmup_min_lr=0.5).get_last_lr() == [0.5]
    resumed = WarmupLR(optimizer(1.0), last_batch_iteration=3)
    with pytest.raises(AssertionError, match="need to call step"):
        resumed.get_last_lr()


def test_cosine_stays_at_its_end() -> None:
    schedule = WarmupCosineLR(optimizer(1.0), total_num_steps=4, warmup_num_steps=4, cos_min_ratio=0.1)
    for iteration in (4, 5, 9):
        schedule.step(iteration)
        assert schedule.get_lr_ratio() == pytest.approx(0.1)


def test_an_unknown_warmup_is_logarithmic() -> None:
    assert WarmupLR(optimizer(1.0), warmup_type="sigmoid").warmup_type == "log"


@pytest.mark.parametrize("steps", [None, -1, 2.5])
def test_warmup_needs_a_number_of_steps(steps: object) -> None:
    with pytest.raises(ConfigError, match="expects at least 0"):
        WarmupLR(optimizer(1.0), warmup_num_steps=steps)  # type: ignore[arg-type]


def test_a_rate_that_is_a_tensor_stays_that_tensor() -> None:
    rate = torch.tensor([0.5], dtype=torch.float64)
    group = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    schedule = WarmupLR(group, warmup_num_steps=4, warmup_type="linear")
    schedule.step(2)
    assert group.param_groups[0]["lr"] is rate
    assert rate.tolist() == [0.25]


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
            {"warmup_num_steps": -1},
            "scheduler.params.warmup_num_steps: expects at least 0 but got -1",
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


def test_range_test_grows_by_interval() -> None:
    params: dict[str, object] = {
        "lr_range_test_min_lr": 0.1,
        "lr_range_test_step_size": 4,
        "lr_range_test_step_rate": 2.0,
    }
    # before the first step the minimum; then 0.1 * (1 + 2 * (i + 1) / 4)
    assert rates("LRRangeTest", params, 6) == pytest.approx([0.1, 0.15, 0.2, 0.25, 0.3, 0.35])
    stairs = rates("LRRangeTest", {**params, "lr_range_test_staircase": True}, 9)
    assert stairs == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.3, 0.3, 0.3, 0.3, 0.5])


def test_stairs_are_flat_and_reach_the_top() -> None:
    params: dict[str, object] = {
        "cycle_min_lr": 1.0,
        "cycle_max_lr": 3.0,
        "cycle_first_step_size": 4,
        "cycle_second_step_size": 6,
        "cycle_first_stair_count": 2,
        "cycle_second_stair_count": 3,
    }
    assert rates("OneCycle", params, 11) == [
        1,
        1,
        2,
        2,
        3,
        *[pytest.approx(1 + 2 * k / 3) for k in (2, 2, 1, 1, 0, 0)],
    ]


CYCLE: dict[str, object] = {
    "cycle_min_lr": 1.0,
    "cycle_max_lr": 3.0,
    "cycle_first_step_size": 4,
    "cycle_second_step_size": 2,
    "decay_step_size": 2,
    "decay_lr_rate": 1.0,
    "decay_mom_rate": 0.5,
}


def test_one_cycle() -> None:
    """Up in four steps, down in two; after the cycle 1 / (1 + k) for k = 1/2, 1, 3/2."""
    found = rates("OneCycle", CYCLE, 10)
    up_and_down = [1.0, 1.5, 2.0, 2.5, 3.0, 2.0, 1.0]
    assert found == pytest.approx([*up_and_down, 1 / 1.5, 1 / 2, 1 / 2.5])


def test_one_cycle_moves_momentum_the_other_way() -> None:
    group = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    schedule = build_scheduler(SchedulerConfig("OneCycle", CYCLE), group)
    found = [group.param_groups[0]["betas"]]
    for _ in range(9):
        schedule.step()
        found.append(group.param_groups[0]["betas"])
    assert {beta2 for _, beta2 in found} == {0.99}
    first = 0.8  # as DeepSpeed: the first optimizer step runs with the least momentum
    cycle = [0.875, 0.85, 0.825, 0.8, 0.85, 0.9]
    after = [0.9 * (1 + 0.5 * k) for k in (0.5, 1.0, 1.5)]
    assert [beta1 for beta1, _ in found] == pytest.approx([first, *cycle, *after])


def test_one_cycle_without_decay_stays() -> None:
    params = {"cycle_min_lr": 1.0, "cycle_max_lr": 2.0, "cycle_first_step_size": 1, "cycle_momentum": False}
    group = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    before = group.param_groups[0]["betas"]
    schedule = build_scheduler(SchedulerConfig("OneCycle", params), group)
    found = []
    for _ in range(5):
        schedule.step()
        found.append(group.param_groups[0]["lr"])
    assert found == [2.0, 1.0, 1.0, 1.0, 1.0]
    assert group.param_groups[0]["betas"] == before


def test_one_cycle_leaves_an_optimizer_without_betas_its_momentum(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.5)
    monkeypatch.setattr(logging.getLogger("dslaunch.engine"), "propagate", True)
    caplog.set_level(logging.INFO, logger="dslaunch.engine")
    build_scheduler(SchedulerConfig("OneCycle", CYCLE), group).step()
    assert group.param_groups[0]["momentum"] == 0.5
    assert caplog.messages == ["OneCycle: cycle_momentum is off, the optimizer has no betas"]


@given(st.integers(1, 9), st.integers(1, 9), st.floats(1e-4, 1e-2), st.floats(1e-2, 1.0), st.integers(0, 60))
def test_one_cycle_is_a_tent(first: int, second: int, low: float, high: float, iteration: int) -> None:
    """Against linear interpolation between the three corners."""
    params = {
        "cycle_min_lr": low,
        "cycle_max_lr": high,
        "cycle_first_step_size": first,
        "cycle_second_step_size": second,
    }
    schedule = OneCycle(optimizer(1.0), **params)  # type: ignore[arg-type]
    schedule.step(iteration)
    corners = [0, first, first + second]
    expected = float(numpy.interp(iteration + 1, corners, [low, high, low]))
    assert schedule.get_lr() == pytest.approx([expected])


@given(st.sampled_from(VALID_LR_SCHEDULES), st.integers(1, 30), st.integers(0, 30))
def test_state_goes_on_where_it_was(name: str, num_before: int, num_after: int) -> None:
    params = {
        "WarmupDecayLR": {"total_num_steps": 40},
        "WarmupCosineLR": {"total_num_steps": 40},
        "OneCycle": CYCLE,
    }.get(name, {})
    config = SchedulerConfig(name, {**params})
    whole, first = build_scheduler(config, optimizer(1.0)), build_scheduler(config, optimizer(1.0))
    for _ in range(num_before):
        whole.step()
        first.step()
    again = build_scheduler(config, optimizer(1.0))
    again.load_state_dict(first.state_dict())
    for _ in range(num_after + 1):
        whole.step()
        again.step()
    assert again.get_last_lr() == whole.get_last_lr()  # type: ignore[attr-defined]


def test_any_schedule_of_torch() -> None:
    group = optimizer(1.0)
    schedule = build_scheduler(SchedulerConfig("StepLR", {"step_size": 2, "gamma": 0.1}), group)
    assert isinstance(schedule, torch.optim.lr_scheduler.StepLR)
    found = []
    for _ in range(4):
        group.step()
        schedule.step()
        found.append(group.param_groups[0]["lr"])
    assert found == pytest.approx([1.0, 0.1, 0.1, 0.01])


@pytest.mark.parametrize(
    ("kind", "params", "what", "hint"),
    [
        ("StepLR", {"stepsize": 2}, "unknown key scheduler.params.stepsize", "did you mean "
         "scheduler.params.step_size?"),
        (
            "StepLR",
            {},
            "scheduler.params: torch's StepLR refuses them: "
            "StepLR.__init__() missing 1 required positional argument: 'step_size'",
            "see torch.optim.lr_scheduler.StepLR",
        ),
        (
            "OneCycleLR",
            {"max_lr": 0.1, "total_steps": -5},
            "scheduler.params: torch's OneCycleLR refuses them: "
            "Expected positive integer total_steps, but got -5",
            "see torch.optim.lr_scheduler.OneCycleLR",
        ),
    ],
)  # fmt: skip
def test_torchs_own_refusals(kind: str, params: dict[str, object], what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_scheduler(SchedulerConfig(kind, params), optimizer(1.0))
    assert (caught.value.what, caught.value.hint) == (what, hint)


def test_all_schedules_of_torch_have_an_answer() -> None:
    module = torch.optim.lr_scheduler
    theirs = {
        name
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, module.LRScheduler) and not name.startswith("_")
    }
    assert theirs - {"LRScheduler"} == {*TORCH_SCHEDULERS, *TORCH_REFUSED}


def test_options_for_scripts() -> None:
    parser = deepspeed.add_tuning_arguments(argparse.ArgumentParser())
    args = parser.parse_args(
        ["--lr_schedule", "OneCycle", "--cycle_min_lr", "1e-3", "--cycle_max_lr", "0.1", "--cycle_momentum"]
    )
    assert (args.lr_range_test_min_lr, args.warmup_num_steps) == (None, None)
    assert scheduler_section(args) == {
        "type": "OneCycle",
        "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 0.1, "cycle_momentum": True},
    }
    with pytest.raises(ConfigError, match="no --lr_schedule is given"):
        scheduler_section(parser.parse_args([]))
