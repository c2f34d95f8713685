"""Where a configuration comes from (dict, path, base64) and how its text is read.

The text is JSON with comments (`//`, `#`, `/* */`) and trailing commas, which DeepSpeed's users have in
their files. Both are blanked out in place, so that the line and column of a syntax error are those of the
file.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dslaunch.engine.errors import ConfigError

ConfigInput = str | Path | Mapping[str, object]

_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"?|//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_STRING_OR_COMMA = re.compile(r'"(?:\\.|[^"\\\n])*"?|,(?=\s*[}\]])', re.DOTALL)


@dataclass(frozen=True, slots=True)
class LoadedSource:
    """A configuration as written, and what is to be said about its text."""

    raw: Mapping[str, object]
    notes: tuple[str, ...] = ()


def choose_source(config: ConfigInput | None, config_params: ConfigInput | None, args: object) -> ConfigInput:
    """The one configuration given to `initialize`; ConfigError when there is none or more than one."""
    from_call = config if config is not None else config_params
    from_args = getattr(args, "deepspeed_config", None) or getattr(args, "deepscale_config", None)
    if from_call is not None and from_args is not None:
        raise ConfigError(
            "Not sure how to proceed, we were given deepspeed configs in the deepspeed arguments "
            "and deepspeed.initialize() function call",
            "drop --deepspeed_config, or drop config= from the call",
        )
    chosen = from_call if from_call is not None else from_args
    if chosen is None:
        raise ConfigError(
            "DeepSpeed requires --deepspeed_config to specify configuration file",
            "pass --deepspeed_config ds_config.json to the script, or config= to initialize",
        )
    return chosen


def load_source(source: ConfigInput) -> LoadedSource:
    """The configuration as a mapping; `source` is a mapping, a path, or base64 of JSON text."""
    if isinstance(source, Mapping):
        return LoadedSource(source)
    path = Path(source)
    if _is_file(path):
        try:
            return _load_text(path.read_text(encoding="utf-8-sig"), str(path))
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not UTF-8 text", "save it as UTF-8") from None
    try:
        text = base64.urlsafe_b64decode(str(source)).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        text = ""
    if not text.lstrip().startswith("{"):
        raise ConfigError(
            "Expected a string path to an existing deepspeed config, or a dictionary or a valid base64. "
            f"Received: {source}",
            "check the path; it is looked up from the directory the script runs in, on every node",
        )
    return _load_text(text, "the base64 config")


def _load_text(text: str, name: str) -> LoadedSource:
    uncommented = _TOKEN.sub(_blank_unless_string, text)
    found = [
        what
        for what, there in (
            ("comments", uncommented != text),
            ("trailing commas", _STRING_OR_COMMA.sub(_blank_unless_string, uncommented) != uncommented),
        )
        if there
    ]
    notes = (f"{name} has {' and '.join(found)}: read here, but it is not JSON to other programs",)
    return LoadedSource(parse_text(text, name), notes if found else ())


def parse_text(text: str, name: str) -> dict[str, object]:
    """JSON text (comments and trailing commas allowed) to a dict; `name` stands in the errors."""
    plain = _STRING_OR_COMMA.sub(_blank_unless_string, _TOKEN.sub(_blank_unless_string, text))
    duplicates: list[str] = []

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        duplicates.extend(key for key, count in Counter(key for key, _ in items).items() if count > 1)
        return dict(items)

    try:
        parsed: object = json.loads(plain, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{name}:{error.lineno}:{error.colno}: not valid JSON: {error.msg[0].lower()}{error.msg[1:]}",
            "comments and trailing commas are fine; look at that line and the one before it",
        ) from None
    if duplicates:
        raise ConfigError(f"Duplicate keys in DeepSpeed config: {duplicates}", f"keep one of each in {name}")
    if not isinstance(parsed, dict):
        raise ConfigError(f"{name} holds {type(parsed).__name__}, not an object", "write { ... }")
    return parsed


def _blank_unless_string(match: re.Match[str]) -> str:
    token = match.group()
    return token if token.startswith('"') else re.sub(r"[^\n]", " ", token)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a base64 text is longer than any file name
        return False
