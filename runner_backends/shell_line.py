"""An argv as one line for a login shell on another host."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from dslaunch.runner_backends.child import BAD_CHARACTER
from dslaunch.runner_backends.errors import BackendError

# The line is one argument of the tool here and of the shell there, and Linux takes none longer than this.
MAX_LINE_BYTES = 128 * 1024 - 1


def shell_line(argv: Sequence[str]) -> str:
    """The argv quoted for any shell of the Bourne kind."""
    return shlex.join(argv)


def without_colon(argv: tuple[str, ...]) -> tuple[str, ...]:
    """An argv that does the same and has no word `:`, which srun and mpirun take for the start of another."""
    return ("sh", "-c", f"exec {shell_line(argv)}") if ":" in argv else argv


def check_line(line: str, carrier: str, host_name: str) -> None:
    """Raises BackendError, on behalf of the host, for a line that `carrier` cannot carry."""
    try:
        num_bytes = len(os.fsencode(line))
    except UnicodeEncodeError as error:
        raise BackendError(host_name, f"cannot send the command: {error}", BAD_CHARACTER) from error
    if "\0" in line:
        raise BackendError(host_name, "cannot send the command: it holds a NUL character", BAD_CHARACTER)
    if num_bytes > MAX_LINE_BYTES:
        raise BackendError(
            host_name,
            f"the command line is {num_bytes} bytes, of {MAX_LINE_BYTES} that {carrier} can carry",
            "put the arguments in a file",
        )
