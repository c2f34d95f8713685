"""The `dslaunch` command: argv to LaunchRequest, and its errors to words and exit codes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace

import click

from dslaunch.hostfile import TopologyError
from dslaunch.launcher.errors import EXIT_USAGE, UsageError
from dslaunch.launcher.options import SECTIONS, SectionedCommand, underscores
from dslaunch.launcher.request import DryRun, LaunchRequest

_ELASTIC_RESTARTS = 100
"""As often as DeepSpeed's elastic agent."""

_HELP = """Launch SCRIPT on every device of every host, as the `deepspeed` command does.

Options of dslaunch come before SCRIPT; everything after it belongs to the script, byte for byte. Every
option may be spelled with - or _. `dslaunchctl` holds the companions: report, hosts, exec.
"""


def _request(**flags: object) -> LaunchRequest:
    _refuse_unsupported(flags)
    if flags["script"] is None:
        raise UsageError("no script", "dslaunch [OPTIONS] SCRIPT [ARGS]...; see dslaunch --help")
    if flags["module"] and flags["no_python"]:
        raise UsageError("--module and --no_python exclude each other", "keep one")
    known = {field.name for field in fields(LaunchRequest)}
    request = LaunchRequest(**{name: value for name, value in flags.items() if name in known})  # type: ignore[arg-type]
    return _with_elastic_flags(request, flags)


def _refuse_unsupported(flags: dict[str, object]) -> None:
    if flags["autotuning"]:
        raise UsageError(
            "--autotuning is not supported",
            "compare configurations by hand: short runs with other micro batch sizes and ZeRO stages",
        )


def _with_elastic_flags(request: LaunchRequest, flags: dict[str, object]) -> LaunchRequest:
    """DeepSpeed's elastic flags, as restarts on fewer hosts; -1 is its word for nothing said."""
    fewest, most = (_count(flags[name]) for name in ("min_elastic_nodes", "max_elastic_nodes"))
    if not flags["elastic_training"]:
        if fewest is not None or most is not None:
            raise UsageError("--min_elastic_nodes or --max_elastic_nodes alone", "add --elastic_training")
        return request
    return replace(
        request,
        max_restarts=request.max_restarts or _ELASTIC_RESTARTS,
        min_nodes=request.min_nodes or fewest or 1,
        max_nodes=most,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


COMMAND = SectionedCommand(sections=SECTIONS, callback=_request, help=_HELP)
COMMAND = click.version_option(package_name="dslaunch", message="%(prog)s %(version)s")(COMMAND)


def parse(argv: Sequence[str]) -> LaunchRequest | None:
    """The request of a command line; None when it only asked for help or the version.

    Raises UsageError.
    """
    words = _with_dry_run_value(argv)
    job = _value_of("--job", words)
    defaults = {} if job is None else _job_defaults(job)
    try:
        request: object = COMMAND.main(
            words, prog_name="dslaunch", standalone_mode=False, default_map=defaults
        )
    except click.UsageError as error:
        raise UsageError(error.format_message().rstrip("."), "see dslaunch --help") from error
    if not isinstance(request, LaunchRequest):
        return None
    hosts = defaults.get("hosts")
    if isinstance(hosts, list) and request.hostfile is None:
        request = replace(request, hosts=tuple(hosts))
    return request


def _job_defaults(path: str) -> dict[str, object]:
    from dslaunch.launcher.job_file import read_job

    return read_job(path, COMMAND)


def _own_words(words: Sequence[str]) -> list[int]:
    """Indices of the words that are options of ours: none behind the script, none that is a value."""
    takes_value = {
        name
        for option in COMMAND.params
        if isinstance(option, click.Option) and not option.is_flag
        for name in option.opts
    }
    found, i = [], 0
    while i < len(words) and words[i].startswith("-") and words[i] != "--":
        found.append(i)
        i += 2 if _option_name(words[i]) in takes_value else 1
    return found


def _option_name(word: str) -> str:
    """The option as it was declared; `--x=y` stays as it is, for it needs no next word."""
    return "--" + underscores(word[2:]) if word.startswith("--") and "=" not in word else word


def _with_dry_run_value(argv: Sequence[str]) -> list[str]:
    """A bare `--dry_run` means `--dry_run=table`: it must not swallow the script behind it."""
    words = list(argv)
    i = 0
    while i < len(words) and words[i].startswith("-") and words[i] != "--":
        if _option_name(words[i]) == "--dry_run":
            words[i] = f"--dry_run={DryRun.TABLE.value}"
        i = next((own for own in _own_words(words) if own > i), len(words))
    return words


def _value_of(option: str, words: Sequence[str]) -> str | None:
    """The last value given for an option of ours."""
    value = None
    for i in _own_words(words):
        name, equals, rest = words[i].partition("=")
        if _option_name(name) == option:
            value = rest if equals else (words[i + 1] if i + 1 < len(words) else None)
    return value


def main() -> int:
    """Entry point of `dslaunch`."""
    started_at = time.monotonic()
    try:
        request = parse(sys.argv[1:])
        if request is None:
            return 0
        from dslaunch.launcher.launch import launch

        return launch(request, started_at)
    except (UsageError, TopologyError) as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return EXIT_USAGE
