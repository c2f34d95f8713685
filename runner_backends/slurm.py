"""srun: one task per node, in an allocation or in one that srun makes.

[Note: srun and lines] slurmstepd sends a line at once, in messages of 1024 bytes at most
(SLURM_IO_MAX_MSG_LEN), and srun gives each message a label, and a newline where it has none: a message of
just 1024 bytes therefore goes on in the next one. With --unbuffered, or when a process has ended, it sends
whatever it has read, and where a line ended can no longer be told: see [Note: Farewell].
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dslaunch.runner_backends.command import GroupCommand
from dslaunch.runner_backends.demultiplex import LabelledLines
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.farewell import with_farewell
from dslaunch.runner_backends.group import ToolBackend, refuse_logins
from dslaunch.runner_backends.shell_line import without_colon

_LABEL = re.compile(rb" *0*(\d+): ")
_MESSAGE_BYTES = 1024


class SlurmBackend(ToolBackend):
    """Runs the command through srun, task i on `hosts[i]`, with every CPU of the node to choose from."""

    name = "slurm"
    index_word = "env:SLURM_PROCID"
    has_stdin = True
    passes_eof = True

    def __init__(self, *, launcher_args: tuple[str, ...] = (), close_timeout_s: float = 10.0) -> None:
        super().__init__(close_timeout_s)
        self._launcher_args = launcher_args

    def tool_argv(self, command: GroupCommand) -> tuple[str, ...]:
        """The exact command line of srun, for the dry run. Pure."""
        num_hosts = len(command.hosts)
        return (
            "srun",
            *(f"--nodes={num_hosts}", f"--ntasks={num_hosts}", "--ntasks-per-node=1"),
            # Arbitrary is what keeps the order of the list; any other distribution sorts it.
            *(f"--nodelist={','.join(host.name for host in command.hosts)}", "--distribution=arbitrary"),
            *("--label", "--input=all", "--export=ALL"),
            *("--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none"),
            *self._launcher_args,
            *with_farewell(without_colon(command.argv)),
        )

    def tool_environment(self, command: GroupCommand) -> Mapping[str, str]:
        """Nothing: --export=ALL hands our own on."""
        return {}

    def demultiplexer(self, command: GroupCommand) -> LabelledLines:
        """`0: `, `1: `; where there are more than ten, padded with blanks (zeros, in older versions)."""
        indices = {b"%d" % index: index for index in range(len(command.hosts))}
        return LabelledLines(_LABEL, indices, _MESSAGE_BYTES)

    def check(self, command: GroupCommand) -> None:
        """Raises BackendError for hosts with a user or a port: srun logs in nowhere."""
        refuse_logins(self.name, command.hosts)
        if any(":" in host.name for host in command.hosts):
            raise BackendError(self.name, "a host is an IPv6 address", "name hosts as slurm.conf does")
