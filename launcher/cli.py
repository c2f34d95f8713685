"""The `dslaunch` command: argv to LaunchRequest, and its errors to words and exit codes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib.metadata import version

import click

from dslaunch.hostfile import TopologyError
from dslaunch.launcher.errors import EXIT_USAGE, UsageError
from dslaunch.launcher.request import DryRun, Launcher, LaunchRequest, RunMode

_PORT = click.IntRange(1, 65535)
_SECONDS = click.FloatRange(min=0)

_HELP = """Launch SCRIPT on every device of every host, as the `deepspeed` command does.

Options of dslaunch come before SCRIPT; everything after it belongs to the script, byte for byte. Every
option may be spelled with - or _.
"""


def _underscores(name: str) -> str:
    return name.replace("-", "_")


@click.command(
    help=_HELP,
    context_settings={
        "allow_interspersed_args": False,
        "token_normalize_func": _underscores,
        "max_content_width": 100,
        "help_option_names": ["-h", "--help"],
    },
)
@click.option("-H", "--hostfile", metavar="PATH", help="Hosts and their slots.  [default: /job/hostfile]")
@click.option("-i", "--include", default="", metavar="SPEC", help="Only these: worker-1@worker-2:0,2")
@click.option("-e", "--exclude", default="", metavar="SPEC", help="All but these: worker-1@worker-2:0,2")
@click.option("--num_nodes", type=int, metavar="N", help="Only the first N hosts.")
@click.option(
    "--num_gpus", "--num_accelerators", type=int, metavar="N", help="Only the first N slots of each host."
)
@click.option(
    "--master_addr", metavar="ADDR", help="Where ranks meet.  [default: an address of the first host]"
)
@click.option(
    "--master_port", type=_PORT, metavar="PORT", help="Port they meet at.  [default: 29500, or a free one]"
)
@click.option(
    "--launcher", type=click.Choice([kind.value for kind in Launcher]), default="auto", show_default=True
)
@click.option("--ssh_config", metavar="PATH", help="Read this instead of ~/.ssh/config.")
@click.option("--ssh_port", type=_PORT, metavar="PORT", help="SSH port of hosts that name none.")
@click.option("--no_ssh", is_flag=True, help="Run only this node's part; start every node by hand.")
@click.option(
    "--node_rank", type=click.IntRange(min=0), metavar="N", help="This node's place, with --no_ssh."
)
@click.option("--force_multi", is_flag=True, help="Use SSH also for this machine alone.")
@click.option("--module", is_flag=True, help="SCRIPT is a module: python -m SCRIPT.")
@click.option("--no_python", is_flag=True, help="SCRIPT is a program: run it without python.")
@click.option("--no_local_rank", is_flag=True, help="Do not add --local_rank=N to the script's arguments.")
@click.option(
    "--grace", type=_SECONDS, default=30.0, show_default=True, help="Seconds from SIGTERM to SIGKILL."
)
@click.option(
    "--start_timeout", type=_SECONDS, default=120.0, show_default=True, help="Seconds for hosts to answer."
)
@click.option(
    "--lease",
    type=click.FloatRange(min=5),
    default=15.0,
    show_default=True,
    help="Seconds of silence that mean lost.",
)
@click.option(
    "--dry_run",
    type=click.Choice([kind.value for kind in DryRun]),
    help="Show who would run what; start nothing.  [table if no format]",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
@click.version_option(version("dslaunch"), message="%(prog)s %(version)s")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def _parse(
    module: bool,
    no_python: bool,
    launcher: str,
    dry_run: str | None,
    grace: float,
    start_timeout: float,
    lease: float,
    **flags: object,
) -> LaunchRequest:
    if module and no_python:
        raise UsageError("--module and --no_python exclude each other", "keep one")
    run_mode = RunMode.MODULE if module else RunMode.PROGRAM if no_python else RunMode.SCRIPT
    return LaunchRequest(
        run_mode=run_mode,
        launcher=Launcher(launcher),
        dry_run=None if dry_run is None else DryRun(dry_run),
        grace_s=grace,
        start_timeout_s=start_timeout,
        lease_s=lease,
        **flags,  # type: ignore[arg-type]
    )


def parse(argv: Sequence[str]) -> LaunchRequest | None:
    """The request of a command line; None when it only asked for help or the version.

    Raises UsageError.
    """
    try:
        request: object = _parse.main(_with_dry_run_value(argv), prog_name="dslaunch", standalone_mode=False)
    except click.UsageError as error:
        raise UsageError(error.format_message().rstrip("."), "see dslaunch --help") from error
    return request if isinstance(request, LaunchRequest) else None


def _with_dry_run_value(argv: Sequence[str]) -> list[str]:
    """A bare `--dry_run` means `--dry_run=table`: it must not swallow the script behind it."""
    takes_value = {
        name
        for option in _parse.params
        if isinstance(option, click.Option) and not option.is_flag and not option.is_eager
        for name in option.opts
    }
    words = list(argv)
    i = 0
    while i < len(words) and words[i].startswith("-") and words[i] != "--":
        name = "--" + _underscores(words[i][2:]) if words[i].startswith("--") else words[i]
        if name == "--dry_run":
            words[i] = f"--dry_run={DryRun.TABLE.value}"
        elif name in takes_value:
            i += 1
        i += 1
    return words


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
