"""Whether what came of a fault is what should, and the table that says so. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from dslaunch.launcher.ctl.chaos.faults import Fault
from dslaunch.launcher.ctl.chaos.trial import Outcome, Trial
from dslaunch.launcher.errors import EXIT_NODE_LOST

LIMIT_S = 10.0
"""From a fault to the last process of the job gone, and to the end of the command."""
_NOT_TRIED = "host killed, host cut off (they need root on the hosts)"


@dataclass(frozen=True, slots=True)
class Row:
    """One fault and what came of it. `error` says why it could not be tried, "" where it was."""

    trial: Trial
    outcome: Outcome | None
    error: str = ""

    @property
    def troubles(self) -> list[str]:
        """What is not as it should be; none where all is well."""
        if self.outcome is None:
            return [self.error]
        return _troubles(self.trial, self.outcome)


def _troubles(trial: Trial, outcome: Outcome) -> list[str]:
    troubles = []
    if outcome.num_left:
        troubles.append(f"{outcome.num_left} processes are left")
    elif outcome.gone_s is not None and outcome.gone_s > LIMIT_S:
        troubles.append(f"processes were left for more than {LIMIT_S:g} s")
    if outcome.exit_s is None:
        troubles.append("the command did not end")
    elif outcome.exit_s > LIMIT_S:
        troubles.append(f"the command took more than {LIMIT_S:g} s to end")
    wanted = wanted_code(trial.fault)
    if outcome.exit_code is not None and outcome.exit_code != wanted:
        troubles.append(f"exit code {outcome.exit_code} instead of {wanted}")
    if is_named(trial, outcome) is False:
        troubles.append("the cause was not named right")
    return troubles


def wanted_code(fault: Fault) -> int:
    """The documented exit code of `dslaunch` after a fault."""
    match fault:
        case Fault.EXIT_HEEDED | Fault.EXIT:
            return 7
        case Fault.KILL_RANK | Fault.KILL_WRAPPER | Fault.KILL_CLI:
            return 137
        case Fault.TERM_CLI | Fault.HUP_CLI | Fault.INT_CLI:
            return 128 + fault.signal
        case Fault.KILL_AGENT | Fault.KILL_TOOL | Fault.HOST_KILLED | Fault.HOST_CUT:
            return EXIT_NODE_LOST


def is_named(trial: Trial, outcome: Outcome) -> bool | None:
    """Whether verdict.json names the cause; None where nobody was left to write it."""
    cause = outcome.cause
    end = cause.get("end")
    match trial.fault:
        case Fault.KILL_CLI:
            return None
        case Fault.TERM_CLI | Fault.HUP_CLI | Fault.INT_CLI:
            return (cause.get("kind"), cause.get("signal")) == ("Interrupted", int(trial.fault.signal))
        case Fault.KILL_AGENT | Fault.HOST_KILLED | Fault.HOST_CUT:
            return (cause.get("kind"), cause.get("node_rank")) == ("NodeLost", trial.victim_node)
        case Fault.KILL_TOOL:
            return cause.get("kind") == "NodeLost"  # one way may have led to all of them
        case Fault.EXIT_HEEDED | Fault.EXIT | Fault.KILL_RANK | Fault.KILL_WRAPPER:
            returncode = 7 if trial.fault in (Fault.EXIT, Fault.EXIT_HEEDED) else -9
            if cause.get("kind") != "RankFailed" or not isinstance(end, dict):
                return False
            return (end["rank"], end["returncode"]) == (trial.victim, returncode)


def as_text(rows: Sequence[Row], where: str) -> str:
    """A line for each fault, what is wrong with it below it, and what was not tried."""
    heads = ("fault", "noticed", "CLI ends", "all gone", "exit code", "cause named", "left")
    cells = [heads, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    lines = [where]
    for line, row in zip(cells, (None, *rows), strict=True):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if row is not None:
            lines += [f"    wrong: {trouble}" for trouble in row.troubles]
    num_bad = sum(bool(row.troubles) for row in rows)
    lines.append(f"not tried: {_NOT_TRIED}")
    num = len(rows)
    lines.append(f"{num_bad} of {num} faults went wrong" if num_bad else f"all well, {num} of {num} faults")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    outcome = row.outcome
    if outcome is None:
        return (row.trial.fault.value, "", "", "", "", "", "")
    named = {True: "yes", False: "no", None: "-"}[is_named(row.trial, outcome)]
    times = (outcome.noticed_s, outcome.exit_s, outcome.gone_s)
    code = "none" if outcome.exit_code is None else str(outcome.exit_code)
    return (row.trial.fault.value, *map(_seconds, times), code, named, str(outcome.num_left))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def as_record(rows: Sequence[Row], where: str) -> dict[str, object]:
    """For JSON."""
    faults = [
        {
            "fault": row.trial.fault.value,
            "troubles": row.troubles,
            **({} if row.outcome is None else asdict(row.outcome)),
        }
        for row in rows
    ]
    return {"where": where, "limit_s": LIMIT_S, "not_tried": _NOT_TRIED, "faults": faults}
