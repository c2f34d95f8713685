"""Command-line options for DeepSpeed's schedules, for scripts that tune the learning rate from the shell."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from dslaunch.engine.config_answers import Kind
from dslaunch.engine.config_scheduler import SCHEDULE_PARAMS, VALID_LR_SCHEDULES
from dslaunch.engine.errors import ConfigError

_TYPES: Mapping[Kind, Callable[[str], object]] = {"int": int, "number": float, "text": str}


def add_tuning_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add `--lr_schedule` and one option for every parameter of the schedules; absent ones are None."""
    group = parser.add_argument_group("Convergence Tuning", "Convergence tuning configurations")
    group.add_argument("--lr_schedule", choices=VALID_LR_SCHEDULES, help="the schedule of the learning rate")
    answers = {key: answer for params in SCHEDULE_PARAMS.values() for key, answer in params.items()}
    for key, answer in answers.items():
        if key == "last_batch_iteration":
            continue
        if answer.kind == "flag":
            group.add_argument(f"--{key}", action="store_true", default=None, help=answer.means)
        else:
            group.add_argument(f"--{key}", type=_TYPES[answer.kind], help=answer.means)
    return parser


def scheduler_section(args: argparse.Namespace) -> dict[str, object]:
    """The `scheduler` section of a config that the options ask for; ConfigError without --lr_schedule."""
    name = str(getattr(args, "lr_schedule", None))
    if name not in SCHEDULE_PARAMS:
        raise ConfigError("no --lr_schedule is given", f"name one of {', '.join(VALID_LR_SCHEDULES)}")
    given = {key: getattr(args, key, None) for key in SCHEDULE_PARAMS[name]}
    return {"type": name, "params": {key: value for key, value in given.items() if value is not None}}
