"""What can go wrong, and how a launcher would say it."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence


class Fault(enum.Enum):
    """One row of the table. The victim is the highest rank of the last host."""

    EXIT_HEEDED = "rank exits 7; SIGTERM heeded"
    EXIT = "rank exits 7"
    KILL_RANK = "rank SIGKILL"
    KILL_AGENT = "agent SIGKILL"
    KILL_CLI = "CLI SIGKILL"
    TERM_CLI = "CLI SIGTERM"
    INT_CLI = "Ctrl-C"
    """SIGINT to the command's process group, as a terminal sends it."""
    HOST_KILLED = "host killed"
    HOST_CUT = "host cut off"

    @property
    def needs_hosts(self) -> bool:
        return self in (Fault.HOST_KILLED, Fault.HOST_CUT)

    @property
    def is_of_cli(self) -> bool:
        return self in (Fault.KILL_CLI, Fault.TERM_CLI, Fault.INT_CLI)


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
        case Fault.KILL_RANK:
            return rank_named and re.search(r"(?i)sigkill|signal 9|exitcode\s*:\s*-9", said) is not None
        case Fault.KILL_AGENT | Fault.HOST_KILLED | Fault.HOST_CUT:
            where = "|".join(rf"\b{re.escape(name)}\b" for name in host) or "localhost|agent|launch"
            lines = [line for line in said.splitlines() if re.search(where, line)]
            return any(re.search(_LOST, line, re.IGNORECASE) for line in lines)
        case Fault.TERM_CLI:
            return re.search(r"(?i)sigterm|signal 15", said) is not None
        case Fault.INT_CLI:
            return re.search(r"(?i)sigint|signal 2\b|ctrl-c|KeyboardInterrupt", said) is not None
        case Fault.KILL_CLI:
            return None
