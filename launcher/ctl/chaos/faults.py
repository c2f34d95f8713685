"""What can go wrong with a job. The victim is the highest rank of the last host."""

from __future__ import annotations

import enum
import signal


class Fault(enum.Enum):
    """One row of a table."""

    EXIT_HEEDED = "rank exits 7; SIGTERM heeded"
    EXIT = "rank exits 7"
    KILL_RANK = "rank SIGKILL"
    KILL_WRAPPER = "rank's parent SIGKILL"
    """The rank is a script that has started the worker: the worker is left alone."""
    KILL_AGENT = "agent SIGKILL"
    KILL_TOOL = "ssh, pdsh, srun SIGKILL"
    """The program that carries the agents' words; the way to the last host where there is one for each."""
    KILL_CLI = "CLI SIGKILL"
    TERM_CLI = "CLI SIGTERM"
    HUP_CLI = "CLI SIGHUP"
    INT_CLI = "Ctrl-C"
    """SIGINT to the command's process group, as a terminal sends it."""
    HOST_KILLED = "host killed"
    HOST_CUT = "host cut off"

    @property
    def needs_hosts(self) -> bool:
        """Whether it takes hosts that may be killed and cut off."""
        return self in (Fault.HOST_KILLED, Fault.HOST_CUT)

    @property
    def is_of_cli(self) -> bool:
        return self in (Fault.KILL_CLI, Fault.TERM_CLI, Fault.HUP_CLI, Fault.INT_CLI)

    @property
    def act(self) -> str:
        """What the victim does to itself, as chaos/rank.py calls it; "none" where others do it."""
        return _ACTS.get(self, "none")

    @property
    def signal(self) -> signal.Signals:
        """What a fault of the command, or of what it has started, sends."""
        return _SIGNALS.get(self, signal.SIGKILL)


_ACTS = {
    Fault.EXIT_HEEDED: "exit",
    Fault.EXIT: "exit",
    Fault.KILL_RANK: "kill",
    Fault.KILL_WRAPPER: "wrapper",
    Fault.KILL_AGENT: "agent",
}
_SIGNALS = {
    Fault.TERM_CLI: signal.SIGTERM,
    Fault.HUP_CLI: signal.SIGHUP,
    Fault.INT_CLI: signal.SIGINT,
}
