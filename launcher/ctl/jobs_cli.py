"""The commands of `dslaunchctl` about running jobs."""

from __future__ import annotations

import json

import click

_JOB = click.argument("job", required=False)
_RANKS = click.option("--rank", "ranks", metavar="RANKS", help="Only these: 3, or 0,4-7.")


@click.command()
@_JOB
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def ps(job: str | None, as_json: bool) -> int:
    """List this user's jobs on this machine, or the ranks of JOB.

    JOB is an id, the start of one, a name, or the job's --run_dir. Where one job runs, most other commands
    need not be told.
    """
    from dslaunch.launcher.ctl.jobs import ps_record, ps_text

    click.echo(json.dumps(ps_record(job)) if as_json else ps_text(job))
    return 0


@click.command()
@_JOB
@click.option("--once", is_flag=True, help="Show it once, as into a pipe.")
def top(job: str | None, once: bool) -> int:
    """Show what JOB's ranks do and use, until it ends: state, CPU, memory, time since the last line."""
    from dslaunch.launcher.ctl import jobs

    jobs.top(job, once=once)
    return 0


@click.command()
@_JOB
@_RANKS
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the job ends.")
@click.option(
    "-n", "num_lines", type=click.IntRange(min=0), default=100, help="Last lines of each rank. [100]"
)
def logs(job: str | None, ranks: str | None, follow: bool, num_lines: int) -> int:
    """Show what JOB's ranks wrote last; JOB may be the --run_dir of one that has ended.

    A running job's launcher keeps 100 lines of each rank.
    """
    from dslaunch.launcher.ctl import jobs

    jobs.logs(job, ranks, num_lines, follow=follow)
    return 0


@click.command()
@_JOB
@_RANKS
@click.option("--flight", is_flag=True, help="And which collective of NCCL waits for whom.")
def stack(job: str | None, ranks: str | None, flight: bool) -> int:
    """Tell where JOB's ranks are: equal places once, the odd ones marked; with --rank all their threads."""
    from dslaunch.launcher.ctl import jobs

    jobs.stack(job, ranks, with_flight=flight)
    return 0


@click.command("signal")
@click.argument("job")
@click.argument("name", metavar="SIGNAL")
@click.option("--rank", type=click.IntRange(min=0), metavar="RANK", help="Only this one.")
def send_signal(job: str, name: str, rank: int | None) -> int:
    """Send SIGNAL (USR1, or its number) to JOB's ranks."""
    from dslaunch.launcher.ctl import jobs

    jobs.send_signal(job, name, rank)
    return 0


@click.command()
@click.argument("job")
@click.option("--now", is_flag=True, help="Do not give the ranks their --grace.")
def kill(job: str, now: bool) -> int:
    """End JOB as SIGTERM to its dslaunch does, and wait until nothing is left of it."""
    from dslaunch.launcher.ctl import jobs

    jobs.kill(job, now=now)
    return 0


@click.command()
@_JOB
def attach(job: str | None) -> int:
    """Show what JOB shows, until it ends; the exit code is the job's.

    Ctrl-C means what it means to dslaunch: it ends the job, a second one kills it. Ctrl-\\ leaves, and so
    does the death of the terminal: the job goes on.
    """
    from dslaunch.launcher.control.client import attach as attach_to
    from dslaunch.launcher.control.registry import find_job

    entry = find_job(job)
    click.echo(f"dslaunchctl: {entry.id} ({entry.name}); Ctrl-\\ leaves, Ctrl-C ends the job", err=True)
    code = attach_to(entry)
    return 0 if code is None else code


JOB_COMMANDS: tuple[click.Command, ...] = (ps, top, logs, stack, send_signal, kill, attach)
