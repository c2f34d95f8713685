"""`--detach`: the launcher goes on in the background, and the terminal is told when the ranks run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dslaunch.launcher.control.client import attach
from dslaunch.launcher.control.registry import JobEntry
from dslaunch.launcher.errors import EXIT_LAUNCH_FAILED, UsageError
from dslaunch.launcher.request import LaunchRequest

_IS_READY = b"."


def with_run_dir(request: LaunchRequest, name: str, job_id: str) -> LaunchRequest:
    """The request with a folder for what nobody is there to read. Raises UsageError."""
    if request.stdin_rank is not None:
        raise UsageError("--detach with --stdin", "there is nobody to type: leave one out")
    if request.run_dir is not None:
        return replace(request, run_dir=os.path.abspath(request.run_dir))
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return replace(request, run_dir=os.path.join(state, "dslaunch", f"{name}-{job_id}"))


def detach(entry: JobEntry) -> Callable[[], None] | int:
    """Fork. In the background: what to call once the job can be attached to. Here: the exit code.

    That is 0 once every rank runs, or else the job's. Raises UsageError where the run folder cannot be used.
    """
    log = Path(entry.run_dir) / "console.log"
    try:
        log.parent.parent.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(mode=0o700, exist_ok=True)
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write to {log}: {error.strerror}", "choose another --run_dir") from error
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(write_fd)
        os.close(log_fd)
        return _see_it_start(pid, read_fd, entry, log)
    os.close(read_fd)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(fd, target)
    os.close(null)
    os.close(log_fd)

    def tell() -> None:
        os.write(write_fd, _IS_READY)
        os.close(write_fd)

    return tell


def _see_it_start(pid: int, read_fd: int, entry: JobEntry, log: Path) -> int:
    with os.fdopen(read_fd, "rb") as ready:
        is_ready = ready.read(1) == _IS_READY
    code = attach(entry, until_started=True) if is_ready else _end(pid, log)
    if code is not None:
        return code
    say = (
        f"dslaunch: job {entry.id} ({entry.name}) runs in the background: dslaunchctl attach {entry.id}\n"
        f"dslaunch: its output and all about it are in {entry.run_dir}\n"
    )
    os.write(2, os.fsencode(say))
    return 0


def _end(pid: int, log: Path) -> int:
    """It has ended before it could be asked."""
    _, status = os.waitpid(pid, 0)
    os.write(2, log.read_bytes()[-4000:])
    code = os.waitstatus_to_exitcode(status)
    return code if code > 0 else EXIT_LAUNCH_FAILED
