"""Which variables of the launcher's environment its ranks get, and the files that add to them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dslaunch.launcher.errors import UsageError

EXPORTED_PREFIXES = (
    # DeepSpeed's own list
    "MLFLOW",
    "PYTHON",
    "MV2",
    "UCX",
    # the lists of its accelerators, whatever hardware the login node has
    "NCCL",
    "ASCEND",
    "HCCL",
    "NEUWARE_HOME",
    "CNCL",
    "BCCL",
    "BIREN",
    "SUPA",
    # ours
    "TORCH_NCCL",
    "GLOO_",
)

ENV_FILE_NAME = ".deepspeed_env"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class EnvFile:
    """A `.deepspeed_env` file that was read."""

    path: str
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What goes to every host. Later sources win: exported prefixes, then files in their order.

    `counts` says how many variables each source decided, `num_dropped` how many of the launcher's
    environment stay behind.
    """

    variables: Mapping[str, str]
    counts: Mapping[str, int]
    num_dropped: int


def parse_env_file(text: str, path: str) -> EnvFile:
    """Read `NAME=VALUE` lines. Raises UsageError with the line's number.

    Blank lines, `#` lines, `export NAME=VALUE`, CRLF and a BOM are accepted. A value in matching single or
    double quotes loses them (a quoted value may span lines); everything else arrives as written: no
    expansion, no escapes, no trailing comments.
    """
    variables: dict[str, str] = {}
    lines = iter(enumerate(text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"), start=1))
    for number, line in lines:
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        name, equals, value = entry.removeprefix("export ").lstrip().partition("=")
        name = name.strip()
        if not equals or not _NAME.fullmatch(name):
            raise UsageError(
                f"{path}:{number}: not NAME=VALUE: {line!r}", "one variable a line; # starts a comment"
            )
        variables[name] = _value(value.strip(), lines, f"{path}:{number}")
    return EnvFile(path, variables)


def _value(value: str, lines: Iterable[tuple[int, str]], where: str) -> str:
    quote = value[:1]
    if quote not in ("'", '"'):
        return value
    if len(value) > 1 and value.endswith(quote):
        return value[1:-1]
    if quote in value[1:]:
        return value  # quotes are part of the value: 'a' 'b'
    parts = [value[1:]]
    for _, line in lines:
        if line.rstrip().endswith(quote):
            return "\n".join([*parts, line.rstrip()[:-1]])
        parts.append(line)
    raise UsageError(f"{where}: the quote {quote} is never closed", f"end the value with {quote}")


def forward(environ: Mapping[str, str], env_files: Iterable[EnvFile], cwd: str) -> Forwarded:
    """Choose what goes to the hosts.

    `PYTHONPATH` gains the launcher's folder in front, as under DeepSpeed, so that packages beside the
    script are found on every host.
    """
    exported = {name: value for name, value in environ.items() if name.startswith(EXPORTED_PREFIXES)}
    num_dropped = len(environ) - len(exported)
    path = exported.get("PYTHONPATH")
    exported["PYTHONPATH"] = f"{cwd}:{path}" if path else cwd
    source = {name: _prefix(name) for name in exported}
    variables = dict(exported)
    for file in env_files:
        variables.update(file.variables)
        source.update(dict.fromkeys(file.variables, file.path))
    counts: dict[str, int] = {}
    for name in source:
        counts[source[name]] = counts.get(source[name], 0) + 1
    return Forwarded(variables, counts, num_dropped)


def _prefix(name: str) -> str:
    return next(prefix for prefix in EXPORTED_PREFIXES if name.startswith(prefix)).rstrip("_")
