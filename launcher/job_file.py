"""Job files: a command line as YAML, read with `--job` and written by `--dry_run=yaml`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path

import click
import yaml

from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.request import LaunchRequest

_LISTS = ("args", "env_file", "expand_remote", "hosts")


def read_job(path: str, command: click.Command) -> dict[str, object]:
    """The defaults that a job file gives to the parameters of `command`. Raises UsageError.

    Every scalar is text, as on a command line: `1.10` stays `1.10`. `env` maps names to values, `hosts` is a
    list of hostfile lines, `args` a list; all other keys are long options without their dashes.
    """
    try:
        # BaseLoader makes no numbers, booleans or objects of anything
        record = yaml.load(Path(path).read_bytes(), Loader=yaml.BaseLoader)
    except OSError as error:
        raise UsageError(f"cannot read job file {path}: {error.strerror}", "check --job") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        words = " ".join(str(error).split())
        raise UsageError(f"job file {path} is no YAML: {words}", "check its syntax") from error
    if not isinstance(record, dict):
        raise UsageError(f"job file {path} is no mapping", "write `option: value` lines")
    names = {**{_key(param): param.name for param in command.params}, "hosts": "hosts"}
    defaults: dict[str, object] = {}
    for key, value in record.items():
        name = names.get(str(key).replace("-", "_"))
        if name is None:
            close = difflib.get_close_matches(str(key), names, 1)
            hint = f"did you mean {close[0]}?" if close else "keys are the long options, without --"
            raise UsageError(f"job file {path}: unknown key {key!r}", hint)
        defaults[name] = _value(path, str(key), value)
    return defaults


def _value(path: str, key: str, value: object) -> object:
    if key == "env" and isinstance(value, dict):
        return [f"{name}={text}" for name, text in value.items()]
    is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    if key in (*_LISTS, "env"):
        if is_list:
            return value
        raise UsageError(f"job file {path}: {key} is {value!r}", "write a list of texts")
    if not isinstance(value, str):
        raise UsageError(f"job file {path}: {key} is {value!r}", "write one value")
    return value


def write_job(request: LaunchRequest, command: click.Command) -> str:
    """The job file that means the same as `request`."""
    keys: Mapping[str, str] = {str(param.name): _key(param) for param in command.params}
    record: dict[str, object] = {}
    for field in fields(LaunchRequest):
        value = getattr(request, field.name)
        if value == field.default or field.name == "dry_run":
            continue
        record[keys.get(field.name, field.name)] = _plain(value)
    return yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=1000)


def _plain(value: object) -> object:
    match value:
        case Enum():
            return value.value
        case bool():
            return value
        case tuple():
            return [str(item) for item in value]
        case _:
            return str(value)


def _key(param: click.Parameter) -> str:
    """The first long spelling of an option, without dashes; an argument's name."""
    longs = [name for name in param.opts if name.startswith("--")]
    return longs[0].removeprefix("--") if longs else str(param.name)
