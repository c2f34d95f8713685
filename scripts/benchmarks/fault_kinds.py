"""How a launcher would say what went wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dslaunch.launcher.ctl.chaos.faults import Fault

_LOST = r"lost|killed|no sign|unreach|closed|ended|died|daemon|down|signal|SIGKILL|timed? ?out|not respond"


def names_cause(fault: Fault, said: str, rank: int, host: Sequence[str]) -> bool | None:
    """Whether what a launcher said names this fault and where it was; None where nobody is left to say it.

    `host` holds the names and addresses by which it may be called, none for this machine. A lenient reader:
    any sentence that a person could understand so will do.
    """
    rank_named = re.search(rf"(?i)rank\s*:?\s*{rank}\b|\[\[\d+,\d+\],{rank}\]", said) is not None
    match fault:
        case Fault.EXIT_HEEDED | Fault.EXIT:
            return rank_named and re.search(r"(?i)(code|status)\s*:?\s*7\b", said) is not None
        case Fault.KILL_RANK | Fault.KILL_WRAPPER:
            return rank_named and re.search(r"(?i)sigkill|signal 9|exitcode\s*:\s*-9", said) is not None
        case Fault.KILL_AGENT | Fault.KILL_TOOL | Fault.HOST_KILLED | Fault.HOST_CUT:
            where = "|".join(rf"\b{re.escape(name)}\b" for name in host) or "localhost|agent|launch"
            lines = [line for line in said.splitlines() if re.search(where, line)]
            return any(re.search(_LOST, line, re.IGNORECASE) for line in lines)
        case Fault.TERM_CLI:
            return re.search(r"(?i)sigterm|signal 15", said) is not None
        case Fault.HUP_CLI:
            return re.search(r"(?i)sighup|signal 1\b", said) is not None
        case Fault.INT_CLI:
            return re.search(r"(?i)sigint|signal 2\b|ctrl-c|KeyboardInterrupt", said) is not None
        case Fault.KILL_CLI:
            return None
