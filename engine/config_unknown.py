"""Unknown keys: which known key one looks like. Pure.

A key looks like a known one if it is nearly spelled so, is the beginning of its name or its words in order,
or stands in the wrong section. Everything else is somebody else's key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping

from dslaunch.engine.config_answers import Answer, Feature, Section
from dslaunch.engine.errors import ConfigError

_LIKE = 0.85  # difflib's ratio from which two spellings are one word
_SHORTEST_BEGINNING = 5
_OTHER_NAMES = {
    "max_grad_norm": "gradient_clipping",
    "grad_clip": "gradient_clipping",
    "clip_grad": "gradient_clipping",
    "gas": "gradient_accumulation_steps",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "batch_size": "train_batch_size",
    "zero": "zero_optimization",
    "lr_scheduler": "scheduler",
}


def similar_key(key: str, known: Collection[str]) -> str | None:
    """The one of `known` that `key` looks like, or None; dotted keys and comments look like nothing."""
    if "." in key or key.startswith(("_", "#", "/")):
        return None
    names = sorted(known)
    if _OTHER_NAMES.get(key) in names:
        return _OTHER_NAMES[key]
    plain = _plain(key)
    for name in names:
        if _plain(name) == plain:
            return name
    near = difflib.get_close_matches(plain, [_plain(name) for name in names], n=1, cutoff=_LIKE)
    if near:
        return next(name for name in names if _plain(name) == near[0])
    for name in names:
        if len(plain) >= _SHORTEST_BEGINNING and _plain(name).startswith(plain):
            return name
    words = key.lower().split("_")
    if len(words) < 2:
        return None
    return next((name for name in names if _stands_in(words, name.split("_"))), None)


def place_elsewhere(key: str, keys: Mapping[str, Answer]) -> str | None:
    """The path of the first known key of exactly that name, anywhere, or None.

    Short names are anybody's, but those of sections.
    """
    if key in keys:
        return key
    if "_" not in key and key != "stage":
        return None
    return next((path for path in paths(keys) if path.rpartition(".")[2] == key), None)


def paths(keys: Mapping[str, Answer], prefix: str = "") -> Iterator[str]:
    """All paths of a table, sections before what stands in them."""
    for key, answer in keys.items():
        yield prefix + key
        match answer:
            case Section(inner):
                yield from paths(inner, f"{prefix}{key}.")
            case Feature(_, names) if names is not None:
                yield from (f"{prefix}{key}.{name}" for name in sorted(names))
            case _:
                pass


def unknown_key(prefix: str, key: str, known: Collection[str]) -> ConfigError:
    """The error for an unknown key below `prefix` (empty, or ending in a dot), with the nearest one."""
    path = f"{prefix}{key}"
    near = similar_key(key, known)
    if near is not None:
        return ConfigError(f"unknown key {path}", f"did you mean {prefix}{near}?", path)
    if len(known) <= 20:
        return ConfigError(f"unknown key {path}", f"remove it; known here: {', '.join(sorted(known))}", path)
    return ConfigError(f"unknown key {path}", "remove it, or look up its spelling", path)


def _plain(key: str) -> str:
    return re.sub(r"[^a-z0-9]", "", key.lower())


def _stands_in(words: list[str], name: list[str]) -> bool:
    """Whether all of `words` stand in `name`, in that order."""
    left = iter(name)
    return all(word in left for word in words)
