"""What came of asking one host, and what problems that makes: the values between asking and showing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dslaunch.launcher import wire
from dslaunch.launcher.clock_offset import ClockOffset
from dslaunch.launcher.survey.records import Answer


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """One host's.

    Attributes:
        answer: None where there is none; then `what` and `hint` say why, and what to do.
        answered_s: seconds until its agent was there.
        clock: how its clock and this machine's compare.
    """

    host: str
    slots: tuple[int, ...]
    ready: wire.Ready | None = None
    answer: Answer | None = None
    what: str = ""
    hint: str = ""
    answered_s: float = 0.0
    clock: ClockOffset = field(default_factory=ClockOffset)


@dataclass(frozen=True, slots=True)
class Told:
    """A host that answered, with its answer."""

    host: str
    slots: tuple[int, ...]
    ready: wire.Ready
    clock: ClockOffset
    answer: Answer


@dataclass(frozen=True, slots=True)
class Asked:
    """What judging needs to know of the launch that hosts were asked for.

    Attributes:
        port: where ranks would meet; `has_named_port`: the user chose it.
        master_addr: the user's word for it, "" where there is none.
        folder, script: where ranks would start, and what; "" for no script.
        accelerator: kind of the slots, "auto" where nobody says.
    """

    port: int
    has_named_port: bool = False
    master_addr: str = ""
    folder: str = ""
    script: str = ""
    accelerator: str = "auto"


class Severity(Enum):
    """How bad a problem is."""

    ERROR = "error"
    """A launch would fail, or most likely train wrongly or hang."""
    WARNING = "warning"
    """A launch works; sooner or later something may not, or is slow."""
    NOTE = "note"
    """Harmless to dslaunch, but not to everything."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of some hosts, with its remedy."""

    severity: Severity
    hosts: tuple[str, ...]
    what: str
    remedy: str
