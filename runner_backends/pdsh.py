"""pdsh, DeepSpeed's default: one ssh per host, each with the same command line.

[Note: pdsh and stdin] pdsh passes nothing on: it gives every ssh one end of a socket for both stdin and
stdout, and keeps the other. Only when pdsh ends do the remote processes read EOF; that is how they are
stopped. What they say after that is lost.

[Note: pdsh and lines] A line may have 131,000 bytes. From a line that holds `XXRETCODE:` pdsh, which looks
for it with and without -S, drops that and what follows.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import GroupCommand
from dslaunch.runner_backends.demultiplex import LabelledLines
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.group import Complaint, ToolBackend
from dslaunch.runner_backends.shell_line import check_line, shell_line

_GIVEN_UP = re.compile(rb"pdsh@[^:]*: (\S+?): (\S+ exited with exit code \d+|.*killed by signal.*)")
_LABEL = re.compile(rb"(\S+?): ")
_SSH_OPTIONS = "-o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3"


class PdshBackend(ToolBackend):
    """Runs the command on every host through pdsh and ssh.

    PDSH_RCMD_TYPE, PDSH_SSH_ARGS and PDSH_SSH_ARGS_APPEND of `environment`, ours by default, hold;
    to the last our own options are appended, so that the user's, which come first, win in ssh.
    """

    name = "pdsh"
    index_word = "%n"
    has_stdin = False
    leaves_processes = True
    passes_eof = False

    def __init__(
        self,
        ssh_config: Path | None = None,
        *,
        launcher_args: tuple[str, ...] = (),
        environment: Mapping[str, str] = os.environ,
        close_timeout_s: float = 10.0,
    ) -> None:
        super().__init__(close_timeout_s)
        self._ssh_config = ssh_config
        self._launcher_args = launcher_args
        self._environment = environment

    def tool_argv(self, command: GroupCommand) -> tuple[str, ...]:
        """The exact command line of pdsh, for the dry run. Pure."""
        targets = ",".join(self._target(host) for host in command.hosts)
        return ("pdsh", "-S", "-f", "1024", "-w", targets, *self._launcher_args, self._line(command))

    def tool_environment(self, command: GroupCommand) -> Mapping[str, str]:
        """PDSH_RCMD_TYPE and PDSH_SSH_ARGS_APPEND, as they are set for pdsh."""
        port = command.hosts[0].port
        words = [
            self._environment.get("PDSH_SSH_ARGS_APPEND", ""),
            f"-F {self._ssh_config}" if self._ssh_config else "",
            f"-p {port}" if port is not None else "",
            _SSH_OPTIONS,
        ]
        return {
            "PDSH_RCMD_TYPE": self._rcmd_type(),
            "PDSH_SSH_ARGS_APPEND": " ".join(word for word in words if word),
        }

    def demultiplexer(self, command: GroupCommand) -> LabelledLines:
        """`host: `; pdsh leaves out the domain where all hosts share one."""
        return LabelledLines(_LABEL, self._indices(command))

    def _indices(self, command: GroupCommand) -> dict[bytes, int]:
        """Places by label, which is short where all hosts share a domain."""
        names = [host.name.encode() for host in command.hosts]
        indices = {name: index for index, name in enumerate(names)}
        short = Counter(_short(name) for name in names)
        for index, name in enumerate(names):
            if short[_short(name)] == 1:
                indices.setdefault(_short(name), index)
        return indices

    def complaints(self, command: GroupCommand) -> Callable[[bytes], Complaint | None]:
        """`host: ssh: why`, then `pdsh@here: host: ssh exited with exit code 255`."""
        indices = self._indices(command)

        def find(line: bytes) -> Complaint | None:
            over = _GIVEN_UP.fullmatch(line)
            match = over or _LABEL.match(line)
            if match is None or match[1] not in indices:
                return None
            words = (over[2] if over else line[match.end() :]).decode("utf-8", "replace")
            return Complaint(indices[match[1]], words, is_over=over is not None)

        return find

    def check(self, command: GroupCommand) -> None:
        """Raises BackendError where hosts, ports or ssh_config are such as pdsh cannot express."""
        check_line(self._line(command), "pdsh", self.name)
        names = [host.name for host in command.hosts]
        domains = {name.partition(".")[2] for name in names if "." in name}
        if len(domains) == 1 and len({name.partition(".")[0] for name in names}) < len(names):
            raise BackendError(
                self.name,
                f"leaves the domain out of its output, and then cannot tell {', '.join(names)} apart",
                "write every host with its domain, or --launcher ssh",
            )
        ports = {host.port for host in command.hosts}
        if len(ports) > 1:
            raise BackendError(
                self.name,
                "one SSH port for all hosts is possible, but they have "
                + ", ".join(sorted("none" if port is None else str(port) for port in ports)),
                "set Port per host in ssh_config and leave it out of the hostfile; or --launcher ssh",
            )
        if self._ssh_config and re.search(r"[\s%]", str(self._ssh_config)):
            raise BackendError(
                self.name,
                f"cannot pass on a path with a blank or a %: {str(self._ssh_config)!r}",
                "rename that ssh_config",
            )

    def _line(self, command: GroupCommand) -> str:
        # pdsh replaces %h, %u, %n and %% wherever they stand.
        return " ".join(
            word if word == self.index_word else shell_line([word]).replace("%", "%%")
            for word in command.argv
        )

    def _target(self, host: Host) -> str:
        target = host.name if host.user is None else f"{host.user}@{host.name}"
        # What stands before a first colon is read as the way to log in.
        return f"{self._rcmd_type()}:{target}" if target.find(":") > 0 else target

    def _rcmd_type(self) -> str:
        return self._environment.get("PDSH_RCMD_TYPE", "ssh")


def _short(name: bytes) -> bytes:
    return name.partition(b".")[0]
