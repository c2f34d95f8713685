"""Open MPI's mpirun, 4 and 5.

[Note: Open MPI and stdin] With `--stdin all` mpirun 4 hands every byte and EOF to every process as they come.
mpirun 5 (5.0.11) loses most of what is more than 4 KiB, and EOF. So nothing is written to it, and to stop it
is to end it: then its processes read EOF, and SIGTERM follows.

[Note: Open MPI and lines] mpirun 4 labels pieces of 4096 bytes, and puts those of several processes on one
line. Where a process prints `[1,0]<stdout>:` itself, that is taken for a label. A piece and its labels
together have 8192 bytes, or lose what is beyond: lines shorter than 14 bytes, if there are many at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from dslaunch.runner_backends.command import GroupCommand
from dslaunch.runner_backends.demultiplex import LabelledPieces
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.farewell import with_farewell
from dslaunch.runner_backends.mpirun import MpirunBackend
from dslaunch.runner_backends.shell_line import without_colon

_LABELS = {
    4: re.compile(rb"\[1,(\d+)\]<stdout>:"),
    5: re.compile(rb"\[(?:[^\[\]\s]*@)?1,(\d+)\]<stdout>: "),
}


class OpenMpiBackend(MpirunBackend):
    """Runs the command through Open MPI's mpirun; rank i is on `hosts[i]`.

    `major` is its major version; where None, mpirun is asked for it the first time it matters.
    """

    name = "openmpi"
    index_word = "env:OMPI_COMM_WORLD_RANK"
    maker = "Open MPI"
    sign = re.compile(r"(?:Open MPI|OpenRTE)\) (?P<major>\d+)\.")
    package = "openmpi-bin"

    def __init__(
        self,
        ssh_config: Path | None = None,
        *,
        launcher_args: tuple[str, ...] = (),
        program: str = "mpirun",
        major: int | None = None,
        close_timeout_s: float = 10.0,
    ) -> None:
        super().__init__(
            ssh_config, launcher_args=launcher_args, program=program, close_timeout_s=close_timeout_s
        )
        self._given_major = major

    @property
    def has_stdin(self) -> bool:
        """See [Note: Open MPI and stdin]."""
        return self._major < 5

    @property
    def passes_eof(self) -> bool:
        """See [Note: Open MPI and stdin]."""
        return self._major < 5

    def tool_argv(self, command: GroupCommand) -> tuple[str, ...]:
        """The exact command line of mpirun, for the dry run."""
        num_hosts = len(command.hosts)
        return (
            self._program,
            *(("--allow-run-as-root",) if os.geteuid() == 0 else ()),
            *(self._options_5() if self._major >= 5 else self._options_4()),
            *("--host", ",".join(f"{host.name}:1" for host in command.hosts)),
            *("-n", str(num_hosts), "--map-by", "ppr:1:node", "--bind-to", "none", "--stdin", "all"),
            *self._launcher_args,
            *with_farewell(without_colon(command.argv)),
        )

    def tool_environment(self, command: GroupCommand) -> Mapping[str, str]:
        """Nothing beside our own."""
        return {}

    def demultiplexer(self, command: GroupCommand) -> LabelledPieces:
        """`[1,0]<stdout>:`, with a blank after it from 5 on."""
        return LabelledPieces(_LABELS[5 if self._major >= 5 else 4], b"[", len(command.hosts))

    @cached_property
    def _major(self) -> int:
        if self._given_major is not None:
            return self._given_major
        try:
            found = self.sign.search(self._version())
        except BackendError:
            found = None
        return int(found["major"]) if found else 4

    def _options_4(self) -> tuple[str, ...]:
        ssh = ("--mca", "plm_rsh_args", f"-F {self._ssh_config}") if self._ssh_config else ()
        # The end of one process is no reason for mpirun to kill the others: whoever started them decides.
        return (*ssh, "--mca", "orte_abort_on_non_zero_status", "0", "--tag-output")

    def _options_5(self) -> tuple[str, ...]:
        ssh = ("--prtemca", "plm_ssh_args", f"-F {self._ssh_config}") if self._ssh_config else ()
        return (*ssh, "--runtime-options", "error-nonzero-status=0", "--output", "tag")
