"""Which jobs of this user run on this machine: a private folder with a file and a socket for each.

A job holds a lock on its file as long as it lives, however it ends: an entry without its lock is removed by
whoever sees it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.request import LaunchRequest

FOLDER_VARIABLE = "DSLAUNCH_JOBS_DIR"
_MAX_SOCKET_BYTES = 107
"""Of a socket's path (unix(7))."""


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One job: `started_at` in seconds since the epoch; `run_dir` is "" for none."""

    id: str
    name: str
    pid: int
    started_at: float
    cwd: str
    script: str
    run_dir: str


def job_entry(request: LaunchRequest, name: str, job_id: str) -> JobEntry:
    """Of a job that this process is about to run."""
    run_dir = "" if request.run_dir is None else os.path.abspath(request.run_dir)
    return JobEntry(job_id, name, os.getpid(), time.time(), os.getcwd(), request.script, run_dir)


def jobs_folder() -> Path:
    """This user's; it is not made. /run/user will not do: it goes when the user logs out."""
    return Path(os.environ.get(FOLDER_VARIABLE) or f"/tmp/dslaunch-jobs-{os.getuid()}")


def socket_path(job_id: str) -> Path:
    """Where the job listens."""
    return jobs_folder() / f"{job_id}.socket"


class Registration:
    """A place for an entry, which is there from `publish` until `close`, or until this process ends."""

    def __init__(self, entry: JobEntry) -> None:
        """Raises OSError where the folder cannot be made or is not this user's alone."""
        folder = jobs_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(folder)
        running_jobs()  # removes what dead ones have left
        if len(os.fsencode(socket_path(entry.id))) > _MAX_SOCKET_BYTES:
            raise OSError(f"{folder} is too long for a socket's path: set {FOLDER_VARIABLE} to a shorter one")
        self._path = folder / f"{entry.id}.json"
        self._socket_path = socket_path(entry.id)
        # systemd-tmpfiles leaves a locked folder of /tmp alone
        self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._folder_fd, fcntl.LOCK_SH)
        self._new_path = folder / f".{entry.id}.new"
        self._fd = os.open(self._new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        os.write(self._fd, json.dumps(asdict(entry)).encode())

    def publish(self) -> None:
        """Let it be seen: somebody listens at the socket."""
        self._new_path.rename(self._path)

    def close(self) -> None:
        for path in (self._new_path, self._path, self._socket_path):
            path.unlink(missing_ok=True)
        os.close(self._fd)
        os.close(self._folder_fd)


def _check(folder: Path) -> None:
    """Raises OSError where others could have put something there."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise OSError(f"{folder} is not a folder of this user alone: remove it, or set {FOLDER_VARIABLE}")


def running_jobs() -> list[JobEntry]:
    """Those that live, oldest first; what dead ones have left is removed."""
    folder = jobs_folder()
    try:
        _check(folder)
    except OSError:
        return []
    found = [entry for path in folder.glob("*.json") if (entry := _read(path)) is not None]
    return sorted(found, key=lambda entry: entry.started_at)


def _read(path: Path) -> JobEntry | None:
    try:
        with path.open() as file:
            if _is_free(file.fileno()):
                path.unlink(missing_ok=True)
                path.with_suffix(".socket").unlink(missing_ok=True)
                return None
            record = json.load(file)
        return JobEntry(**{field.name: record[field.name] for field in fields(JobEntry)})
    except (OSError, ValueError, LookupError, TypeError):
        return None  # gone meanwhile, or of another version


def _is_free(fd: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False


def find_job(word: str | None) -> JobEntry:
    """The job of that id (or its start), name or run folder; without a word the only one.

    Raises UsageError.
    """
    jobs = running_jobs()
    found = jobs if word is None else _matching(word, jobs)
    if len(found) == 1:
        return found[0]
    which = "" if word is None else f" {word}"
    if found:
        ids = ", ".join(f"{entry.id} ({entry.name})" for entry in found)
        raise UsageError(f"several jobs{which} run: {ids}", "name one by its id")
    raise UsageError(
        f"no job{which} runs here for this user", "see dslaunchctl ps; jobs are known on the host of dslaunch"
    )


def _matching(word: str, jobs: list[JobEntry]) -> list[JobEntry]:
    """By the first way that finds one."""
    folder = os.path.realpath(word)
    for found in (
        [entry for entry in jobs if entry.id == word],
        [entry for entry in jobs if entry.name == word],
        [entry for entry in jobs if entry.run_dir and os.path.realpath(entry.run_dir) == folder],
        [entry for entry in jobs if word and entry.id.startswith(word)],
    ):
        if found:
            return found
    return []


@contextlib.contextmanager
def registered(entry: JobEntry) -> Iterator[Registration]:
    """A place for the entry for as long as this lasts. Raises OSError."""
    registration = Registration(entry)
    try:
        yield registration
    finally:
        registration.close()
