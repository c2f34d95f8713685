"""`scheduler.type` and `scheduler.params` as a checked description. No torch.

Parameters and defaults are those of DeepSpeed's "Learning Rate Schedulers" page; the schedules themselves
are in `lr_schedules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dslaunch.engine.config_answers import Honoured
from dslaunch.engine.config_read import as_kind, auto_value
from dslaunch.engine.config_unknown import similar_key, unknown_key
from dslaunch.engine.config_values import SchedulerConfig
from dslaunch.engine.errors import ConfigError

LR_RANGE_TEST = "LRRangeTest"
ONE_CYCLE = "OneCycle"
WARMUP_LR = "WarmupLR"
WARMUP_DECAY_LR = "WarmupDecayLR"
WARMUP_COSINE_LR = "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]

# Of torch.optim.lr_scheduler, which a test holds this list against.
TORCH_SCHEDULERS = (
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "PolynomialLR",
    "StepLR",
)
TORCH_REFUSED: Mapping[str, str] = {
    "ReduceLROnPlateau": "it needs a metric that the engine does not have",
    **dict.fromkeys(("LambdaLR", "MultiplicativeLR"), "its function cannot be written in JSON"),
    **dict.fromkeys(("ChainedScheduler", "SequentialLR"), "its schedulers cannot be written in JSON"),
}


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """A checked schedule; `params` are the arguments of its constructor, as far as the config names them."""

    name: str
    params: Mapping[str, object]


def _number(means: str, default: float | None = None) -> Honoured:
    return Honoured("number", means, default)


_LAST = {"last_batch_iteration": Honoured("int", "the iteration to go on from", -1)}
_WARMUP = {
    "warmup_num_steps": Honoured("int", "steps of the warm-up, at least 2 of them", 1000, low=0),
    "warmup_type": Honoured("text", "log or linear", "log", choices=("log", "linear")),
    **_LAST,
}
_TOTAL = {"total_num_steps": Honoured("int", "steps of the whole run", None, low=1)}
_RATES = {
    "warmup_min_lr": _number("where the warm-up starts", 0.0),
    "warmup_max_lr": _number("where the warm-up ends"),
}

SCHEDULE_PARAMS: Mapping[str, Mapping[str, Honoured]] = {
    LR_RANGE_TEST: {
        "lr_range_test_min_lr": _number("the first rate", 1e-3),
        "lr_range_test_step_size": Honoured("int", "steps of one interval", 2000, low=1),
        "lr_range_test_step_rate": _number("growth per interval", 1.0),
        "lr_range_test_staircase": Honoured("flag", "grow once per interval, not in every step", False),
        **_LAST,
    },
    ONE_CYCLE: {
        "cycle_min_lr": _number("where the cycle starts and ends"),
        "cycle_max_lr": _number("its top"),
        "decay_lr_rate": _number("decay per interval after the cycle", 0.0),
        "cycle_first_step_size": Honoured("int", "steps of the way up", 2000, low=1),
        "cycle_second_step_size": Honoured("int", "steps of the way down; default: as up", None, low=1),
        "cycle_first_stair_count": Honoured("int", "flat steps of the way up; 0: none", 0, low=0),
        "cycle_second_stair_count": Honoured("int", "flat steps down; default: as up", None, low=0),
        "decay_step_size": Honoured("int", "steps of a decay interval; 0: no decay", 0, low=0),
        "cycle_momentum": Honoured("flag", "cycle momentum the other way round", True),
        "cycle_min_mom": _number("the least momentum", 0.8),
        "cycle_max_mom": _number("the largest momentum", 0.9),
        "decay_mom_rate": _number("growth of momentum per decay interval", 0.0),
        **_LAST,
    },
    WARMUP_LR: {**_RATES, **_WARMUP},
    WARMUP_DECAY_LR: {**_TOTAL, **_RATES, **_WARMUP},
    WARMUP_COSINE_LR: {
        **_TOTAL,
        "warmup_min_ratio": _number("share of the rate where the warm-up starts", 0.0),
        "cos_min_ratio": _number("share of the rate at the end", 1e-4),
        **_WARMUP,
    },
}
_REQUIRED = {
    ONE_CYCLE: ("cycle_min_lr", "cycle_max_lr"),
    WARMUP_DECAY_LR: ("total_num_steps",),
    WARMUP_COSINE_LR: ("total_num_steps",),
}
_REQUIRED_HINTS = {
    "total_num_steps": "write the number of optimizer steps of the whole run",
    "cycle_min_lr": "write the learning rate the cycle starts from",
    "cycle_max_lr": "write the learning rate the cycle goes up to",
}


def scheduler_spec(config: SchedulerConfig) -> SchedulerSpec:
    """The schedule a config names; ConfigError on an unknown name, or a wrong or missing parameter."""
    name = config.type
    if name in TORCH_REFUSED:
        raise ConfigError(
            f"scheduler.type: {name} is not supported: {TORCH_REFUSED[name]}",
            "make it in the script: initialize(lr_scheduler=lambda optimizer: ...)",
            "scheduler.type",
        )
    if name not in SCHEDULE_PARAMS and name not in TORCH_SCHEDULERS:
        known = [*SCHEDULE_PARAMS, *TORCH_SCHEDULERS]
        near = similar_key(name, known)
        raise ConfigError(
            f"scheduler.type: {name} is neither DeepSpeed's nor in torch.optim.lr_scheduler",
            f"did you mean {near}?" if near else f"use {', '.join(VALID_LR_SCHEDULES)} or one of torch's",
            "scheduler.type",
        )
    answers = SCHEDULE_PARAMS.get(name)
    params: dict[str, object] = {}
    for key, value in config.params.items():
        path = f"scheduler.params.{key}"
        if value == "auto":
            raise auto_value(path)
        if answers is None:
            params[key] = value  # torch checks its own
        elif key not in answers:
            raise unknown_key("scheduler.params.", key, answers)
        elif value is not None:
            params[key] = _checked(path, value, answers[key])
    for key in _REQUIRED.get(name, ()):
        if key not in params:
            path = f"scheduler.params.{key}"
            raise ConfigError(f"{path} is missing: {name} needs it", _REQUIRED_HINTS[key], path)
    return SchedulerSpec(name, MappingProxyType(params))


def _checked(path: str, value: object, answer: Honoured) -> object:
    found = as_kind(path, value, answer.kind)
    if answer.choices and found not in answer.choices:
        raise ConfigError(
            f"{path}: expects {' or '.join(answer.choices)} but got {value!r}", "write linear", path
        )
    if answer.low is not None and isinstance(found, int) and found < answer.low:
        wanted = "a positive integer" if answer.low == 1 else f"at least {answer.low:g}"
        raise ConfigError(f"{path}: expects {wanted} but got {value!r}", f"correct {path}", path)
    return found
