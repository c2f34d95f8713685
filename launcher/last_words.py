"""What of a dead rank's last lines says why it died. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_LINES = 20
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"[A-Za-z_][\w.]*(: .*|:?)$")
_HINT = "hint: "
"""How the errors of the engine go on."""
_CUT = "    ..."


def last_words(lines: Sequence[str]) -> list[str]:
    """The last Python traceback with its error, cut in its middle where it is long; else the last lines.

    What follows a traceback (a library's own stack dump, a warning at exit) hides the cause.
    """
    starts = [i for i, line in enumerate(lines) if _TRACEBACK in line]
    if not starts:
        return list(lines[-MAX_LINES:])
    start = starts[-1]
    indent = lines[start].index(_TRACEBACK)
    end = next((i for i in range(start + 1, len(lines)) if _ends(lines[i], indent)), len(lines) - 1)
    while end + 1 < len(lines) and lines[end + 1][indent:].startswith(_HINT):
        end += 1
    found = list(lines[start : end + 1])
    if len(found) <= MAX_LINES:
        return found
    half = MAX_LINES // 2
    return [*found[:half], _CUT, *found[-half:]]


def _ends(line: str, indent: int) -> bool:
    """Whether the line is the error that closes a traceback: as far left as its head, and no frame of it."""
    return _RAISED.match(line[indent:]) is not None
