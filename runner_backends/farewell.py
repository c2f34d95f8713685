"""A last line from every process, for tools that lose output when processes end.

[Note: Farewell] mpirun of Open MPI, 4 and 5, drops what it has not written yet when the last process ends,
megabytes where its reader is slow. srun breaks lines in the wrong place in what a process leaves behind. So a
process is run by a shell that, after its end, says goodbye and keeps its place until EOF: goodbye is read
when all before it has been, and when all have said it the tool is told to end. It carries the exit code,
and no early end is a reason for the tool to end the other processes.
"""

from __future__ import annotations

import re

# The shell lives through signals that are for the process. Descriptor 3 keeps stdout from ending.
_SHELL = 'trap : HUP INT TERM; "$@"; echo "<dslaunch:ended $?>"; exec cat 3>&1 >/dev/null'
FAREWELL = re.compile(rb"<dslaunch:ended (\d+)>\n?\Z")
"""The end of the last line of a process; its group is the exit code, 128 + n for signal n."""


def with_farewell(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The argv that runs `argv` and then waits for EOF."""
    return ("sh", "-c", _SHELL, "sh", *argv)
