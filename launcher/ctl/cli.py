"""The `dslaunchctl` command: argv to the companions, and their errors to words and exit codes."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import click

from dslaunch.hostfile import TopologyError
from dslaunch.launcher.ctl.checkpoint import checkpoint
from dslaunch.launcher.ctl.jobs_cli import JOB_COMMANDS
from dslaunch.launcher.ctl.options import (
    host_request,
    launch_request,
    takes_hosts,
    takes_hosts_and_ways,
    takes_launch,
)
from dslaunch.launcher.errors import EXIT_LAUNCH_FAILED, EXIT_USAGE, LaunchError, UsageError
from dslaunch.launcher.options import underscores

_EXIT_INTERRUPTED = 130
_EXIT_PIPE = 141
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")


@click.group(
    context_settings={
        "token_normalize_func": underscores,
        "max_content_width": 110,
        "help_option_names": ["-h", "--help"],
    },
    invoke_without_command=True,
)
@click.version_option(version("dslaunch"), message="%(prog)s %(version)s")
@click.pass_context
def _dslaunchctl(context: click.Context) -> None:
    """The companions of dslaunch. Every option may be spelled with - or _."""
    if context.invoked_subcommand is None:
        raise UsageError("no command", "dslaunchctl report, check, exec, ...; see dslaunchctl --help")


@_dslaunchctl.command()
@_JSON
def report(as_json: bool) -> int:
    """Tell what this machine has: torch, CUDA, NCCL, driver, GPUs, compilers, kernels, tools."""
    from dslaunch.launcher.ctl.report import gather, report_as_json, report_as_text

    found = gather()
    click.echo(report_as_json(found) if as_json else report_as_text(found))
    return 0


@takes_hosts
@_dslaunchctl.command()
@_JSON
def hosts(as_json: bool, **flags: object) -> int:
    """Tell which hosts and slots the hostfile, the allocation and the filters come to."""
    from dslaunch.launcher.ctl.hosts import hosts_as_json, hosts_as_text
    from dslaunch.launcher.machine import Machine
    from dslaunch.launcher.resolve import resolve

    found = resolve(host_request(flags), Machine.here())
    show = hosts_as_json if as_json else hosts_as_text
    click.echo(show(found.topology, found.origin))
    return 0


@_dslaunchctl.command("engine-path")
def engine_path() -> int:
    """Print the folder that makes import deepspeed find the engine, for PYTHONPATH of other launchers."""
    click.echo(Path(__file__).parents[2] / "compat/path")
    return 0


@_dslaunchctl.command("install-aliases")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def aliases(folder: Path) -> int:
    """Write deepspeed, ds, ds_report and ds_ssh into DIR, as wrappers of dslaunch. Never over a file."""
    from dslaunch.launcher.ctl.aliases import install_aliases

    for path in install_aliases(folder, Path(sys.executable).parent):
        click.echo(path)
    return 0


@takes_hosts
@_dslaunchctl.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--no_fold", is_flag=True, help="Show lines as they come, each behind its host's name.")
@click.argument("argv", metavar="-- COMMAND [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def execute(no_fold: bool, argv: tuple[str, ...], **flags: object) -> int:
    """Run COMMAND on every host at once, and show equal answers once.

    It is run without a shell, stdin empty, its stderr among its stdout. The exit code is the largest of
    all hosts'; 110 where a host could not be reached, 111 where the way to one was lost. Ctrl-C ends it
    everywhere: SIGTERM, and SIGKILL after 3 s; once more does not wait.
    """
    if not argv:
        raise UsageError("no command to run", "dslaunchctl exec [OPTIONS] -- COMMAND [ARGS]...")
    from dslaunch.launcher.ctl.execute import execute_on_hosts
    from dslaunch.launcher.machine import Machine
    from dslaunch.launcher.resolve import resolve

    return execute_on_hosts(resolve(host_request(flags), Machine.here()), argv, fold=not no_fold)


@takes_launch
@_dslaunchctl.command()
@click.option(
    "--fast", is_flag=True, help="Leave out what takes more than a moment: drivers, who holds devices."
)
@click.option(
    "--nccl", is_flag=True, help="Also time all-reduces between pairs of hosts; over gloo without GPUs."
)
@click.option(
    "--timeout",
    "start_s",
    type=click.FloatRange(min=0),
    default=10.0,
    metavar="S",
    help="Seconds for a host to be reached. [10]",
)
@_JSON
@click.argument("script", default="")
def check(script: str, fast: bool, nccl: bool, start_s: float, as_json: bool, **flags: object) -> int:
    """Look all hosts over before a launch, and tell what is wrong, with its remedy.

    Hosts, Python, folder and SCRIPT, versions, devices, ways between the hosts, names, clocks, room and
    limits. Nothing is changed, and nothing left. The exit code is 1 where there is something to mend.
    """
    from dslaunch.launcher.check.command import Manner, check_hosts
    from dslaunch.launcher.machine import Machine
    from dslaunch.launcher.resolve import resolve

    resolved = resolve(launch_request(script, flags), Machine.here())
    manner = Manner(is_thorough=not fast, measures_links=nccl, is_json=as_json, start_s=start_s)
    return check_hosts(resolved, manner)


@takes_hosts_and_ways
@_dslaunchctl.command()
@click.option("--fault", "wanted", multiple=True, help="Only faults that begin so: 'rank', 'CLI'.")
@_JSON
def selftest(wanted: tuple[str, ...], as_json: bool, **flags: object) -> int:
    """Try on your own hosts what can go wrong with a job, and whether anything is left of it.

    One small job for each fault, on every slot, without touching a device: a rank exits or is killed, its
    parent, an agent, the program that carries the connection, or dslaunch itself is killed, interrupted or
    told to end, while other ranks ignore signals, stand stopped, or flood their output. Nothing is
    installed, and only processes of these jobs are ever touched. The exit code is 0 only if after every
    fault all of the job was gone within 10 s, with the right exit code and the right cause.
    """
    from dslaunch.launcher.ctl.selftest import enough_ranks, faults_to_try
    from dslaunch.launcher.ctl.selftest import selftest as run_selftest
    from dslaunch.launcher.machine import Machine
    from dslaunch.launcher.resolve import resolve

    if flags["hostfile"] == "-":
        raise UsageError("--hostfile - with selftest, which launches many times", "write it to a file")
    machine = Machine.here()
    resolved = resolve(enough_ranks(resolve(host_request(flags), machine)), machine)
    chosen = faults_to_try(resolved.backend, wanted)
    text, code = run_selftest(resolved, chosen, _progress, as_json=as_json)
    click.echo(text)
    return code


def _progress(text: str) -> None:
    """On a terminal, a line that is written over."""
    if sys.stderr.isatty():
        click.echo(f"\r{text:<60}\r", nl=False, err=True)


@_dslaunchctl.command()
@click.option("-o", "--output", metavar="PATH", help="The page. [RUN_DIR/view.html]")
@click.argument("folder", metavar="RUN_DIR")
def view(folder: str, output: str | None) -> int:
    """Make one HTML page of what `dslaunch --run_dir RUN_DIR` has kept, also while it runs.

    Start-up, what every rank did, memory, devices, restarts, and the end. The page needs nothing else.
    """
    from pathlib import Path

    from dslaunch.launcher.view.read import write_page

    target = Path(folder) / "view.html" if output is None else Path(output)
    write_page(Path(folder), target)
    click.echo(target)
    return 0


@_dslaunchctl.command()
@click.argument("file", metavar="DS_CONFIG")
@click.option("--world_size", metavar="N", help="Data-parallel ranks; checks the batch sizes.")
@click.option("--params", metavar="P", help="Parameters of the model, as 7e9 or 7B; tells memory per rank.")
@click.option("--auto", is_flag=True, help='Values "auto" are no errors: a framework fills them in.')
@_JSON
def config(file: str, world_size: str | None, params: str | None, auto: bool, as_json: bool) -> int:
    """Tell what is wrong with a ds_config.json, what has no effect, and what it takes per rank.

    Nothing is started. The exit code is 2 if training would refuse it, or if a key is unknown.
    """
    from dslaunch.launcher.ctl.config import lint_config

    return lint_config(file, world_size, params, auto=auto, as_json=as_json)


for _command in (checkpoint, *JOB_COMMANDS):
    _dslaunchctl.add_command(_command)


@_dslaunchctl.command()
@click.option(
    "--arch", multiple=True, metavar="ARCH", help="A GPU architecture such as 9.0; may be repeated."
)
@click.argument("folder", metavar="[FOLDER]", required=False)
def build(arch: tuple[str, ...], folder: str | None) -> int:
    """Compile the engine's optimizer kernels ahead of their first use, into the cache or anew into FOLDER.

    Needs no GPU: on a login node, name the architecture of the nodes. Without --arch, nvcc compiles for the
    usual ones, and without nvcc NVRTC will on the node.
    """
    from dslaunch.launcher.ctl.config import build_kernels

    return build_kernels(folder, arch)


def main() -> int:
    """Entry point of `dslaunchctl`."""
    try:
        code: object = _dslaunchctl.main(sys.argv[1:], prog_name="dslaunchctl", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        where = "dslaunchctl" if error.ctx is None else error.ctx.command_path
        return _refuse(error.format_message().rstrip("."), f"see {where} --help")
    except (UsageError, TopologyError) as error:
        return _refuse(str(error), error.hint)
    except LaunchError as error:
        click.echo(f"error: {error.what}\nhint: {error.hint}", err=True)
        return EXIT_LAUNCH_FAILED
    except click.Abort:
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit flushes into it again
        return _EXIT_PIPE
    return code if isinstance(code, int) else 0


def _refuse(what: str, hint: str) -> int:
    click.echo(f"error: {what}\nhint: {hint}", err=True)
    return EXIT_USAGE
