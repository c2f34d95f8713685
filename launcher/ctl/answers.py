"""What hosts answered to one command: equal answers told once, and one exit code for all. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dslaunch.hostfile import fold_names
from dslaunch.launcher.errors import EXIT_LAUNCH_FAILED, EXIT_NODE_LOST

_RULE = "-" * 15
_LOST_HINT = "the command was told to end; look at the host"


@dataclass(frozen=True, slots=True)
class Exited:
    """The command ended. A signal counts as 128 and its number, as in a shell."""

    code: int


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The command was not started."""

    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The way to the host broke while the command ran."""

    what: str


Outcome: TypeAlias = Exited | Unreachable | Lost


@dataclass(frozen=True, slots=True)
class Answer:
    """One host's. `num_cut_bytes` of its output were not kept."""

    host: str
    outcome: Outcome
    output: bytes = b""
    num_cut_bytes: int = 0


def exit_code(answers: Sequence[Answer]) -> int:
    """The largest of the commands'; but 111 where a host was lost, else 110 where one was not reached."""
    if any(isinstance(answer.outcome, Lost) for answer in answers):
        return EXIT_NODE_LOST
    if any(isinstance(answer.outcome, Unreachable) for answer in answers):
        return EXIT_LAUNCH_FAILED
    return max((answer.outcome.code for answer in answers if isinstance(answer.outcome, Exited)), default=0)


def folded(answers: Sequence[Answer]) -> bytes:
    """Every answer once, under the names of the hosts that gave it, in the order of the first of them.

    A host that said nothing and ended well is left out, as is one that was never reached.
    """
    groups: dict[tuple[bytes, int, str], list[str]] = {}
    for answer in answers:
        how = _how_it_ended(answer.outcome)
        if answer.output or (how and not isinstance(answer.outcome, Unreachable)):
            groups.setdefault((answer.output, answer.num_cut_bytes, how), []).append(answer.host)
    return b"".join(
        _group(hosts, output, num_cut_bytes, how) for (output, num_cut_bytes, how), hosts in groups.items()
    )


def _group(hosts: Sequence[str], output: bytes, num_cut_bytes: int, how: str) -> bytes:
    count = f" ({len(hosts)})" if len(hosts) > 1 else ""
    head = f"{_RULE}\n{fold_names(hosts)}{count}{f': {how}' if how else ''}\n{_RULE}\n"
    text = output if output.endswith(b"\n") or not output else output + b"\n"
    cut = f"... and {num_cut_bytes} bytes more, which --no_fold shows\n" if num_cut_bytes else ""
    return head.encode() + text + cut.encode()


def _how_it_ended(outcome: Outcome) -> str:
    match outcome:
        case Exited(0):
            return ""
        case Exited(code):
            return f"exit code {code}"
        case Unreachable():
            return "not reached"
        case Lost():
            return "lost"


def complaints(answers: Sequence[Answer], *, with_codes: bool) -> list[str]:
    """Lines about what went wrong, hosts with the same trouble together; exit codes only `with_codes`."""
    troubles: dict[tuple[str, str], list[str]] = {}
    for answer in answers:
        match answer.outcome:
            case Unreachable(what, hint):
                troubles.setdefault((what, hint), []).append(answer.host)
            case Lost(what):
                troubles.setdefault((what, _LOST_HINT), []).append(answer.host)
            case Exited(code) if code and with_codes:
                troubles.setdefault((f"exit code {code}", ""), []).append(answer.host)
            case Exited():
                pass
    lines = []
    for (what, hint), hosts in troubles.items():
        lines += (
            [f"error: {fold_names(hosts)}: {what}", f"hint: {hint}"]
            if hint
            else [f"{fold_names(hosts)}: {what}"]
        )
    return lines
