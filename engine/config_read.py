"""Reads a raw mapping against the key table: types, unknown keys, refusals, and what has no effect.

A walk goes on after an error, so that the linter can tell them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, cast

from typing_extensions import assert_never

from dslaunch.engine.config_answers import (
    Answer,
    Feature,
    Honoured,
    Kind,
    NoEffect,
    Refused,
    Renamed,
    Section,
)
from dslaunch.engine.config_unknown import place_elsewhere, similar_key, unknown_key
from dslaunch.engine.errors import ConfigError

T = TypeVar("T")

_KIND_NAMES: Mapping[Kind, str] = {
    "int": "an integer",
    "number": "a number",
    "flag": "true or false",
    "text": "a string",
    "mapping": "an object",
    "texts": "a list of strings",
}


@dataclass(frozen=True, slots=True)
class Remark:
    """Keys that are accepted without effect, and why; `warn` where that will surprise."""

    paths: tuple[str, ...]
    why: str
    warn: bool


@dataclass(slots=True)
class Reading:
    """What a walk found: honoured values by full path, errors, and what is to be said."""

    values: dict[str, object] = field(default_factory=dict)
    errors: list[ConfigError] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # paths that look like nothing known
    no_effect: dict[str, list[str]] = field(default_factory=dict)  # reason -> paths
    alarming: dict[str, list[str]] = field(default_factory=dict)  # likewise, to be warned of
    defaulted: list[str] = field(default_factory=list)  # paths with "auto"

    def warn(self, path: str, why: str) -> None:
        """The key at `path` is accepted without effect, which will surprise."""
        self.alarming.setdefault(why, []).append(path)

    def get(self, path: str, kind: type[T], default: T) -> T:
        """The value at `path`, already type-checked by the walk, or `default` where the key is absent."""
        return cast(T, self.values.get(path, default))

    def record(self, kind: Callable[..., T], prefix: str, **more: object) -> T:
        """A dataclass of settings from the values below `prefix`; absent ones take their default."""
        found = {
            item.name: self.values[f"{prefix}{item.name}"]
            for item in fields(cast(Any, kind))
            if "answer" in item.metadata and f"{prefix}{item.name}" in self.values
        }
        return kind(**found, **more)

    def attempt(self, action: Callable[[], T], otherwise: T) -> T:
        """What `action` returns; its ConfigError is kept, and `otherwise` returned."""
        try:
            return action()
        except ConfigError as error:
            self.errors.append(error)
            return otherwise

    def remarks(self) -> tuple[Remark, ...]:
        """One for each reason."""
        both = ((self.no_effect, False), (self.alarming, True))
        return tuple(
            Remark(tuple(paths), why, warn) for reasons, warn in both for why, paths in reasons.items()
        )

    def left_auto(self) -> tuple[str, ...]:
        """A line about the keys whose "auto" nobody has filled in, if there are any."""
        if not self.defaulted:
            return ()
        return (f'{", ".join(self.defaulted)}: "auto" was left in, the default holds',)


def without_effect(remarks: tuple[Remark, ...], warn: bool) -> tuple[str, ...]:
    """The lines about what is accepted without effect: those to be warned of, or the others."""
    return tuple(
        f"{', '.join(remark.paths)}: no effect, {remark.why}" for remark in remarks if remark.warn == warn
    )


def read(raw: Mapping[str, object], keys: Mapping[str, Answer]) -> Reading:
    """Walk `raw` against `keys`; what is wrong stands in the reading's `errors`, in order."""
    reading = Reading()
    _walk(raw, keys, "", reading, keys)
    return reading


def _walk(
    raw: Mapping[str, object],
    keys: Mapping[str, Answer],
    prefix: str,
    reading: Reading,
    top: Mapping[str, Answer],
) -> None:
    for key, value in raw.items():
        if key in keys:
            try:
                _answer(f"{prefix}{key}", value, keys[key], reading, top)
            except ConfigError as error:
                reading.errors.append(error)
        else:
            _unknown(prefix, str(key), keys, reading, top)


def _unknown(
    prefix: str, key: str, known: Collection[str], reading: Reading, top: Mapping[str, Answer]
) -> None:
    if similar_key(key, known) is not None:
        reading.errors.append(unknown_key(prefix, key, known))
    elif elsewhere := place_elsewhere(key, top):
        path = f"{prefix}{key}"
        reading.errors.append(ConfigError(f"unknown key {path}", f"did you mean {elsewhere}?", path))
    else:
        reading.unknown.append(f"{prefix}{key}")


def _answer(path: str, value: object, answer: Answer, reading: Reading, top: Mapping[str, Answer]) -> None:
    match answer:
        case Section(keys):
            if value is not None:
                _walk(as_mapping(path, value), keys, f"{path}.", reading, top)
        case Honoured(auto=auto):
            if value == "auto" and not auto:
                raise auto_value(path)
            if value == "auto":
                reading.defaulted.append(path)
            elif value is not None:
                reading.values[path] = _honoured(path, value, answer)
        case NoEffect(why, quiet, warn):
            if value != "auto" and not _is_one_of(value, quiet):
                if warn:
                    reading.warn(path, why)
                else:
                    reading.no_effect.setdefault(why, []).append(path)
        case Refused(why, off, hint):
            if value != "auto" and not _is_one_of(value, off):
                raise ConfigError(f"{path}: {value!r} is refused: {why}", hint, path)
        case Renamed():
            pass  # only where the old and the new spelling are both given, which is an error already
        case Feature(inner, _):
            if _is_on(path, value, answer, reading, top):
                _answer(path, value, inner, reading, top)
        case _:
            assert_never(answer)


def _is_on(path: str, value: object, feature: Feature, reading: Reading, top: Mapping[str, Answer]) -> bool:
    if not isinstance(value, Mapping):
        return value not in (None, False)
    names = feature.keys
    for key in value:
        if names is not None and key not in names:
            _unknown(f"{path}.", str(key), names, reading, top)
    if names is not None and "device" in names:
        return value.get("device", "none") not in (None, "none", "auto")
    # What is only remarked on may have had no switch, as sparse_attention had none.
    unswitched = bool(value) and isinstance(feature.answer, NoEffect) and names is None
    return bool(value.get("enabled", unswitched)) and value.get("enabled") != "auto"


def _is_one_of(value: object, allowed: tuple[object, ...]) -> bool:
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed)


def _honoured(path: str, value: object, answer: Honoured) -> object:
    if isinstance(value, str) and "." in path:
        value = _unquoted(value, answer.kind)  # as DeepSpeed does inside sections: "stage": "2"
    found = as_kind(path, value, answer.kind)
    if answer.choices and str(found).lower() not in answer.choices:
        raise ConfigError(
            f"{path}: expects one of {', '.join(answer.choices)} but got {value!r}",
            f"write {answer.choices[0]}",
            path,
        )
    if answer.low is not None and not cast(float, found) >= answer.low:
        raise ConfigError(
            f"{path}: expects at least {answer.low:g} but got {value!r}", f"correct {path}", path
        )
    return float(cast(float, found)) if answer.kind == "number" else found


def _unquoted(text: str, kind: Kind) -> object:
    if kind == "flag":
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in ("int", "number"):
        try:
            return float(text)
        except ValueError:
            return text
    return text


def as_kind(path: str, value: object, kind: Kind) -> object:
    """`value` as `kind`; ConfigError names the key and the value.

    5e8 is an integer, 0.5 and true are not; 0 and 1 are flags.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    match kind:
        case "int":
            if is_number and float(cast(float, value)).is_integer():
                return int(cast(float, value))
        case "number":
            if is_number:
                return value
        case "flag":
            if isinstance(value, bool) or value in (0, 1):  # as DeepSpeed takes them
                return bool(value)
        case "text":
            if isinstance(value, str):
                return value
        case "mapping":
            if isinstance(value, Mapping):
                return value
        case "texts":
            if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
                return tuple(value)
        case _:
            assert_never(kind)
    raise ConfigError(
        f"{path}: expects {_KIND_NAMES[kind]} but got {value!r}",
        f"write {path} without quotes" if isinstance(value, str) and kind != "texts" else f"correct {path}",
        path,
    )


def as_mapping(path: str, value: object) -> Mapping[str, object]:
    """`value` as a mapping, or ConfigError."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expects an object but got {value!r}", f'write "{path}": {{ ... }}', path)
    return value


def auto_value(path: str) -> ConfigError:
    """The error for "auto" where only a framework that fills it in knows the value."""
    return ConfigError(
        f'{path}: "auto" is only known to frameworks that fill it in (the Hugging Face Trainer)',
        f"write a value for {path}",
        path,
    )
