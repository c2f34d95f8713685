"""The answers a key of a ds_config can get, and settings: dataclass fields that carry their own answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

Kind = Literal["int", "number", "flag", "text", "mapping", "texts"]
T = TypeVar("T")

_KIND_OF: Mapping[type, Kind] = {bool: "flag", int: "int", float: "number", str: "text", tuple: "texts"}


@dataclass(frozen=True, slots=True)
class Honoured:
    """Read into the config.

    Attributes:
        auto: whether "auto" means the default; elsewhere it is an error.
        low: the least value; `choices`: the only ones, upper and lower case alike.
    """

    kind: Kind
    means: str
    default: object = None
    auto: bool = False
    low: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Accepted; one line says `why` it changes nothing, unless the engine does it anyway (`quiet`).

    `warn` makes that line a warning: the user will have wanted something that does not happen.
    """

    why: str
    quiet: tuple[object, ...] = ()
    warn: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """An error, unless the value is in `off`."""

    why: str
    off: tuple[object, ...] = (False, None)
    hint: str = "remove the key"


@dataclass(frozen=True, slots=True)
class Section:
    """An object with keys of its own."""

    keys: Mapping[str, Answer]


@dataclass(frozen=True, slots=True)
class Feature:
    """An object switched by `enabled`: on gets `answer`. `keys` None: anything may stand in it."""

    answer: NoEffect | Refused
    keys: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Renamed:
    """An old spelling of the key at `path`, see `config_deprecated`."""

    path: str


Answer = Honoured | NoEffect | Refused | Section | Feature | Renamed


def setting(
    default: T,
    means: str,
    *,
    kind: Kind | None = None,
    auto: bool = True,
    low: float | None = None,
    choices: tuple[str, ...] = (),
) -> T:
    """A dataclass field that is a key of the same name; `kind` follows from a default that is not None."""
    answer = Honoured(kind or _KIND_OF[type(default)], means, default, auto, low, choices)
    return field(default=default, metadata={"answer": answer})


def settings_of(record: type[Any], prefix: str = "") -> dict[str, Answer]:
    """The answer of every setting of a dataclass, by key: `prefix` and the field's name."""
    return {
        f"{prefix}{item.name}": item.metadata["answer"]
        for item in fields(record)
        if "answer" in item.metadata
    }
