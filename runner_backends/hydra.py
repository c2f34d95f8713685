"""The mpiruns that are Hydra: MPICH's, MVAPICH's and Intel's.

[Note: Hydra and stdin] MPICH's mpirun hands stdin to rank 0 only, and gives up where that reads too slowly.
So nothing is written to it. It hands SIGTERM on to every process, and that is what ends them. Intel's hands
stdin and EOF on to all (`-s all`).

[Note: Hydra and lines] Hydra labels whatever a process has written at once, and puts the pieces of several
processes on one line. The label can be chosen, so that no process prints it by chance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dslaunch.runner_backends.command import GroupCommand
from dslaunch.runner_backends.demultiplex import LabelledPieces
from dslaunch.runner_backends.farewell import with_farewell
from dslaunch.runner_backends.mpirun import MpirunBackend
from dslaunch.runner_backends.shell_line import without_colon

_LABEL = re.compile(rb"<dslaunch:(\d+)>")
_HYDRA = re.compile(r"HYDRA")


class HydraBackend(MpirunBackend):
    """Runs the command through Hydra's mpirun; rank i is on `hosts[i]`."""

    index_word = "env:PMI_RANK"
    ssh_variable: str
    """The variable with options for ssh."""
    options: tuple[str, ...]
    """What this Hydra needs beside what all of them take."""

    def tool_argv(self, command: GroupCommand) -> tuple[str, ...]:
        """The exact command line of mpirun, for the dry run. Pure."""
        return (
            *(self._program, "-n", str(len(command.hosts)), "-ppn", "1"),
            *("-hosts", ",".join(host.name for host in command.hosts)),
            *("-prepend-pattern", "<dslaunch:%r>", *self.options),
            *self._launcher_args,
            *self.wrapped(without_colon(command.argv)),
        )

    def wrapped(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """What each process really runs, for the sake of `argv`."""
        return argv

    def tool_environment(self, command: GroupCommand) -> Mapping[str, str]:
        """The options for ssh."""
        return {self.ssh_variable: f"-F {self._ssh_config}"} if self._ssh_config else {}

    def demultiplexer(self, command: GroupCommand) -> LabelledPieces:
        """Our own label."""
        return LabelledPieces(_LABEL, b"<", len(command.hosts))


class MpichBackend(HydraBackend):
    """Runs the command through MPICH's mpirun."""

    name = "mpich"
    has_stdin = False
    passes_eof = False
    maker = "MPICH"
    sign = _HYDRA
    package = "mpich"
    ssh_variable = "HYDRA_LAUNCHER_EXTRA_ARGS"
    # The end of one process is no reason for mpirun to kill the others: whoever started them decides.
    options = ("-disable-auto-cleanup",)


class MvapichBackend(MpichBackend):
    """Runs the command through MVAPICH's mpirun, which is MPICH's by another name."""

    name = "mvapich"
    maker = "MVAPICH"


class ImpiBackend(HydraBackend):
    """Runs the command through Intel MPI's mpirun."""

    name = "impi"
    has_stdin = True
    passes_eof = True
    maker = "Intel MPI"
    sign = re.compile(r"Intel\(R\) MPI")
    package = "intel-oneapi-mpi"
    ssh_variable = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"
    options = ("-s", "all")

    def wrapped(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """It kills all processes once one has ended with another code than 0; see [Note: Farewell]."""
        return with_farewell(argv)

    def tool_environment(self, command: GroupCommand) -> Mapping[str, str]:
        """The options for ssh; and no process is pinned to a core."""
        return {**super().tool_environment(command), "I_MPI_PIN": "0"}
