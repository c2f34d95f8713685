"""What every MPI's mpirun has in common, and which one is on PATH."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from dslaunch.runner_backends.command import GroupCommand
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.group import ToolBackend, refuse_logins
from dslaunch.runner_backends.programs import find_tool

VERSION_TIMEOUT_S = 30.0


class MpirunBackend(ToolBackend):
    """Runs the command through mpirun, one process per host, none of them bound to a core.

    mpirun logs in with ssh, or with what an allocation offers; `ssh_config` is for the former.
    `program` is the mpirun to take, by name or by path.
    """

    maker: str
    """Whose mpirun it has to be, as errors call it."""
    sign: re.Pattern[str]
    """What that one prints for --version; a group named `major` holds its major version."""
    package: str
    """The Debian package it is in."""

    def __init__(
        self,
        ssh_config: Path | None = None,
        *,
        launcher_args: tuple[str, ...] = (),
        program: str = "mpirun",
        close_timeout_s: float = 10.0,
    ) -> None:
        super().__init__(close_timeout_s)
        self._ssh_config = ssh_config
        self._launcher_args = launcher_args
        self._program = program

    def check(self, command: GroupCommand) -> None:
        """Raises BackendError for another MPI's mpirun, and for hosts and paths that none of them takes."""
        version = self._version()
        if self.sign.search(version) is None:
            first = next(iter(version.splitlines()), "") or "silent about its version"
            raise BackendError(
                self.name,
                f"{self._program} is not {self.maker}'s: it is {first}",
                f"put {self.maker}'s bin folder first in PATH, or take another --launcher",
            )
        refuse_logins(self.name, command.hosts)
        if any(":" in host.name for host in command.hosts):
            raise BackendError(self.name, "a host is an IPv6 address", "give it a name in /etc/hosts or DNS")
        if self._ssh_config and re.search(r"\s", str(self._ssh_config)):
            what = f"cannot pass on a path with a blank: {str(self._ssh_config)!r}"
            raise BackendError(self.name, what, "rename that ssh_config")

    def _version(self) -> str:
        """What it says for --version. Raises BackendError where it is missing or does not answer."""
        program = find_tool(self._program, self.package)
        try:
            ran = subprocess.run(
                [program, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            what = f"{program} --version failed: {str(error).lower()}"
            raise BackendError(self.name, what, "try that by hand") from error
        return ran.stdout or ran.stderr
