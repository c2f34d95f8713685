"""A launch as a child process: started from a request, its lines read as they come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dslaunch.launcher.job_file import write_job
from dslaunch.launcher.request import LaunchRequest

_MAIN = (
    "import signal, sys; "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # nohup ignores it, and so would its children
    "signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from dslaunch.launcher.cli import main; sys.exit(main())"
)
_SAME_PYTHON = 'exec "$(readlink "/proc/$PPID/exe")" -ISc "$@"'
"""For sh: the interpreter that the host's agent runs on."""
_END_S = 10.0


def payload_request(request: LaunchRequest, code: str, *args: str, mark: str = "") -> LaunchRequest:
    """The request of a launch that runs Python `code` as every rank, on hosts that have none of our files.

    `mark`, NAME=VALUE, is in the environment of all ranks.
    """
    return replace(
        request,
        script="sh",
        args=("-c", _SAME_PYTHON, "sh", code, *args),
        no_python=True,
        no_local_rank=True,
        cwd="/",
        env=(*request.env, *([mark] if mark else [])),
    )


class Job:
    """A running `dslaunch`. Everything is drained, so that nothing ever waits for us."""

    def __init__(self, request: LaunchRequest, on_line: Callable[[str], None]) -> None:
        """`on_line` gets the ranks' lines, without their prefix, in a thread."""
        from dslaunch.launcher.cli import COMMAND

        self.folder = tempfile.TemporaryDirectory(prefix="dslaunch-selftest-", ignore_cleanup_errors=True)
        path = Path(self.folder.name)
        self.run_dir = path / "run"
        (path / "job.yaml").write_text(write_job(replace(request, run_dir=str(self.run_dir)), COMMAND))
        self._on_line = on_line
        self._err = (path / "stderr").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, "--job", str(path / "job.yaml")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._err,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for line in pipe:
                self._on_line(line.decode(errors="replace").partition("] ")[2].rstrip("\n"))

    @property
    def said(self) -> str:
        """What the command itself has written so far."""
        return Path(self._err.name).read_text(errors="replace")

    @property
    def complaint(self) -> str:
        """What it has said is wrong: its error, else its last line."""
        lines = [line.removeprefix("dslaunch: ") for line in self.said.splitlines()]
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it said nothing"])[-1].removeprefix("error: ")

    @property
    def children(self) -> list[int]:
        """Pids of what the command has started itself."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_child(pid)]

    def _is_child(self, pid: int) -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return int(stat.rpartition(")")[2].split()[1]) == self.process.pid

    def close(self) -> None:
        """End it, politely first: its ranks are ended with it, and by themselves where it is killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + _END_S
            while self.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            self.process.kill()
        self.process.wait()
        self._err.close()
        self.folder.cleanup()
