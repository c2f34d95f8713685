"""Which variables of the launcher's environment its ranks get, and the files that add to them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dslaunch.launcher.accelerators import ACCELERATORS
from dslaunch.launcher.errors import UsageError

_PREFIXES = (
    *("MLFLOW", "PYTHON", "MV2", "UCX"),  # DeepSpeed's own list
    *("TORCH_NCCL", "GLOO_"),
)
_HOST_PREFIXES = frozenset({"LD_LIBRARY", "PATH"})
"""What some accelerators' lists have too; on another host it is right only where all hosts are alike."""

ENV_FILE_NAME = ".deepspeed_env"

MASK = "****"
_SECRET = re.compile(r"(?i)(^|_)(passw(or)?d|passphrase|secret|token|credential|key)s?($|_)")
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


def parse_settings(settings: Iterable[str], environ: Mapping[str, str]) -> EnvFile:
    """The `--env` options, as if they were a file: `NAME=VALUE`, or `NAME` for the launcher's own value.

    Raises UsageError.
    """
    variables = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not _NAME.fullmatch(name):
            raise UsageError(f"--env {setting!r} is not NAME or NAME=VALUE", "check the name of the variable")
        if not equals and name not in environ:
            raise UsageError(f"--env {name}: there is no {name} here", f"give a value: --env {name}=VALUE")
        variables[name] = value if equals else environ[name]
    return EnvFile("--env", variables)


def exported_prefixes(accelerator: str) -> tuple[str, ...]:
    """Beginnings of the names that go along: of every accelerator, whatever hardware the login node has.

    `LD_LIBRARY` and `PATH` go only with an accelerator that was asked for by name and has them.
    """
    of_all = {prefix for kind in ACCELERATORS.values() for prefix in kind.exported_prefixes} - _HOST_PREFIXES
    asked = ACCELERATORS[accelerator].exported_prefixes if accelerator in ACCELERATORS else ()
    return tuple(dict.fromkeys((*_PREFIXES, *sorted(of_all), *asked)))


def forward(
    environ: Mapping[str, str], env_files: Iterable[EnvFile], *, cwd: str, accelerator: str = "auto"
) -> Forwarded:
    """Choose what goes to the hosts.

    `PYTHONPATH` gains the launcher's folder in front, as under DeepSpeed, so that packages beside the
    script are found on every host.
    """
    prefixes = exported_prefixes(accelerator)
    exported = {name: value for name, value in environ.items() if name.startswith(prefixes)}
    path = exported.get("PYTHONPATH")
    exported["PYTHONPATH"] = f"{cwd}:{path}" if path else cwd
    source = {name: next(p for p in prefixes if name.startswith(p)).rstrip("_") for name in exported}
    variables = dict(exported)
    for file in env_files:
        variables.update(file.variables)
        source.update(dict.fromkeys(file.variables, file.path))
    counts: dict[str, int] = {}
    for name in source:
        counts[source[name]] = counts.get(source[name], 0) + 1
    return Forwarded(variables, counts, num_dropped=len(environ.keys() - variables.keys()))


def masked(name: str, value: str) -> str:
    """The value as it may be shown: not at all, where the name says that it is a secret."""
    return MASK if is_secret(name) else value


def all_masked(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables as they may be shown."""
    return {name: masked(name, value) for name, value in variables.items()}


def is_secret(name: str) -> bool:
    """Whether a variable looks like one that holds a password, a key or a token."""
    return bool(_SECRET.search(name))
