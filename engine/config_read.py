"""Reads a raw mapping against the key table: types, unknown keys, refusals, and what has no effect."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from typing_extensions import assert_never

from dslaunch.engine.config_keys import Answer, Feature, Honoured, Kind, NoEffect, Refused, Section
from dslaunch.engine.errors import ConfigError

T = TypeVar("T")

_KIND_NAMES: Mapping[Kind, str] = {
    "int": "an integer",
    "number": "a number",
    "flag": "true or false",
    "text": "a string",
    "mapping": "an object",
}


@dataclass(slots=True)
class Reading:
    """What a walk found: honoured values by full path, and the reasons of keys without effect."""

    values: dict[str, object] = field(default_factory=dict)
    no_effect: dict[str, list[str]] = field(default_factory=dict)  # reason -> paths

    def get(self, path: str, kind: type[T], default: T) -> T:
        """The value at `path`, already type-checked by the walk, or `default` where the key is absent."""
        return cast(T, self.values.get(path, default))

    def notes(self) -> tuple[str, ...]:
        """One line for each reason, naming the keys it is true of."""
        return tuple(f"{', '.join(paths)}: no effect, {why}" for why, paths in self.no_effect.items())


def read(raw: Mapping[str, object], keys: Mapping[str, Answer], prefix: str = "") -> Reading:
    """Walk `raw` against `keys`; ConfigError on the first key that is unknown, mistyped or refused."""
    reading = Reading()
    _walk(raw, keys, prefix, reading)
    return reading


def _walk(raw: Mapping[str, object], keys: Mapping[str, Answer], prefix: str, reading: Reading) -> None:
    for key, value in raw.items():
        path = f"{prefix}{key}"
        if key not in keys:
            raise unknown_key(prefix, key, keys)
        _answer(path, value, keys[key], reading)


def _answer(path: str, value: object, answer: Answer, reading: Reading) -> None:
    match answer:
        case Section(keys):
            if value is not None:
                _walk(as_mapping(path, value), keys, f"{path}.", reading)
        case Honoured(kind, auto):
            if value == "auto" and not auto:
                raise auto_value(path)
            if value is not None and value != "auto":
                reading.values[path] = as_kind(path, value, kind)
        case NoEffect(why, quiet):
            if value != "auto" and not _is_one_of(value, quiet):
                reading.no_effect.setdefault(why, []).append(path)
        case Refused(why, off, hint):
            if not _is_one_of(value, off):
                raise ConfigError(f"{path}: {value!r} is refused: {why}", hint)
        case Feature(inner, keys_inside):
            if _is_on(path, value, keys_inside):
                _answer(path, value, inner, reading)
        case _:
            assert_never(answer)


def _is_on(path: str, value: object, keys: Collection[str] | None) -> bool:
    if not isinstance(value, Mapping):
        return value not in (None, False)
    for key in value:
        if keys is not None and key not in keys:
            raise unknown_key(f"{path}.", str(key), keys)
    if value.get("enabled") == "auto":
        raise auto_value(f"{path}.enabled")
    if keys is not None and "device" in keys:
        return value.get("device", "none") not in (None, "none")
    return bool(value.get("enabled", False))


def _is_one_of(value: object, allowed: tuple[object, ...]) -> bool:
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed)


def as_kind(path: str, value: object, kind: Kind) -> object:
    """`value` as `kind`; ConfigError names the key and the value. 5e8 is an integer, 0.5 and true are not."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "int":
            if is_number and float(cast(float, value)).is_integer():
                return int(cast(float, value))
        case "number":
            if is_number:
                return value
        case "flag":
            if isinstance(value, bool):
                return value
        case "text":
            if isinstance(value, str):
                return value
        case "mapping":
            if isinstance(value, Mapping):
                return value
        case _:
            assert_never(kind)
    raise ConfigError(
        f"{path}: expects {_KIND_NAMES[kind]} but got {value!r}",
        f"write {path} without quotes" if isinstance(value, str) else f"correct {path}",
    )


def as_mapping(path: str, value: object) -> Mapping[str, object]:
    """`value` as a mapping, or ConfigError."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expects an object but got {value!r}", f'write "{path}": {{ ... }}')
    return value


def unknown_key(prefix: str, key: str, known: Collection[str]) -> ConfigError:
    """The error for an unknown key below `prefix` (empty, or ending in a dot), with the nearest one."""
    what = f"unknown key {prefix}{key}"
    section, dot, inner = key.partition(".")
    if dot and section in known:
        return ConfigError(what, f'write it as "{section}": {{"{inner}": ...}}')
    near = difflib.get_close_matches(key, sorted(known), n=1)
    if near:
        return ConfigError(what, f"did you mean {prefix}{near[0]}?")
    if len(known) <= 20:
        return ConfigError(what, f"remove it; known here: {', '.join(sorted(known))}")
    return ConfigError(what, "remove it, or look up its spelling")


def auto_value(path: str) -> ConfigError:
    """The error for "auto" where only a framework that fills it in knows the value."""
    return ConfigError(
        f'{path}: "auto" is only known to frameworks that fill it in (the Hugging Face Trainer)',
        f"write a value for {path}",
    )
