"""`--run_dir`: what a run leaves for later: plan.json, events.jsonl, verdict.json and logs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from dslaunch.launcher import wire
from dslaunch.launcher.clock_offset import ClockOffset
from dslaunch.launcher.environment import all_masked
from dslaunch.launcher.errors import LaunchError, UsageError
from dslaunch.launcher.plan import LaunchPlan
from dslaunch.launcher.supervise import AgentClosed, Deadline, FromAgent, Input
from dslaunch.launcher.usage_log import UsageLog
from dslaunch.launcher.verdict import Interrupted, JobHung, PeerEnded, Verdict

_UNWRITTEN = (wire.Output, wire.Heartbeat, wire.Stack, wire.FlightPiece, wire.CensusEnd)


class RunFolder:
    """Writes as the run goes; a run that is killed leaves what it knew."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError where the folder cannot be made."""
        self._folder = folder
        self._have_spoken: set[int] = set()
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)  # logs and arguments are the user's own
            self._events = (folder / "events.jsonl").open("a", encoding="utf-8")
            self._usage = UsageLog(folder / "usage.jsonl")
        except OSError as error:
            raise UsageError(
                f"cannot write to --run_dir {folder}: {error.strerror}", "choose another folder"
            ) from error
        self._write_event({"event": "Opened"})

    @property
    def logs(self) -> Path:
        """Where the ranks' logs go."""
        return self._folder / "logs"

    def write_plan(self, plan: LaunchPlan) -> None:
        """The plan, values that look like secrets masked."""
        nodes = []
        for node in plan.nodes:
            ranks = tuple(rank._replace(env=all_masked(rank.env)) for rank in node.ranks)
            nodes.append(node._replace(env=all_masked(node.env), ranks=ranks).as_dict())
        self._write("plan.json", {**asdict(replace(plan, nodes=())), "nodes": nodes})
        self._have_spoken.clear()
        places = [
            {"host": node.host, "ranks": {rank.rank: rank.slot for rank in node.ranks}} for node in plan.nodes
        ]
        self._write_event(
            {"event": "Plan", "job_id": plan.job_id, "master": asdict(plan.master), "nodes": places}
        )

    def write_preflight(self, text: str) -> None:
        """What the hosts told of themselves before the launch, as JSON."""
        (self._folder / "preflight.json").write_text(text + "\n", encoding="utf-8")
        self._write_event({"event": "LookedOver"})

    def write_input(self, what: Input) -> None:
        """One line, with this machine's time, for what happened; of output only each rank's first."""
        match what:
            case FromAgent(node_rank, wire.Vitals() | wire.DeviceUse() as sample):
                self._usage.note(node_rank, sample)
                return
            case FromAgent(node_rank, wire.Output(rank)) if rank not in self._have_spoken:
                self._have_spoken.add(rank)
                record = {"event": "FirstOutput", "node_rank": node_rank, "rank": rank}
            case FromAgent(_, message) if isinstance(message, _UNWRITTEN):
                return
            case FromAgent(node_rank, message):
                record = {"event": type(message).__name__, "node_rank": node_rank, **message._asdict()}
            case AgentClosed(node_rank, reason, _, heard_ns):
                record = {
                    "event": "AgentClosed",
                    "node_rank": node_rank,
                    "reason": reason,
                    "heard_ns": heard_ns,
                }
            case Interrupted(number):
                record = {"event": "Interrupted", "signal": number}
            case JobHung():
                record = {"event": "JobHung", **asdict(what)}
            case PeerEnded(exit_code, lines):
                record = {"event": "PeerEnded", "exit_code": exit_code, "lines": lines}
            case Deadline():
                record = {"event": "Deadline", "which": what.name}
        self._write_event(record)

    def write_clock(self, node_rank: int, offset: ClockOffset) -> None:
        """How far a node's clock is from ours: added to its time it gives ours, as told after this."""
        self._write_event({"event": "Clock", "node_rank": node_rank, **asdict(offset)})

    def _write_event(self, record: Mapping[str, object]) -> None:
        self._events.write(json.dumps({"launcher_time_ns": time.time_ns(), **record}) + "\n")
        self._events.flush()

    def write_verdict(
        self, verdict: Verdict, words: list[str], where: Mapping[str, object], command: str
    ) -> None:
        """The end, as values and in the words that were shown; `command` runs the job again."""
        cause = (
            None if verdict.cause is None else {"kind": type(verdict.cause).__name__, **asdict(verdict.cause)}
        )
        self._write_end(
            {
                "exit_code": verdict.exit_code,
                "cause": cause,
                "where": where,
                "command": command,
                "collateral": [asdict(end) for end in verdict.collateral],
                "silent_nodes": verdict.silent_nodes,
                "stuck_nodes": verdict.stuck_nodes,
                "report": words,
            }
        )

    def write_refusal(self, error: LaunchError) -> None:
        """The end of a job of which no rank was started."""
        cause = {"kind": type(error).__name__, "what": error.what, "hint": error.hint}
        words = [f"error: {error.what}", f"hint: {error.hint}"]
        of_ranks: Mapping[str, object] = {"collateral": [], "silent_nodes": [], "stuck_nodes": []}
        self._write_end({"exit_code": error.exit_code, "cause": cause, **of_ranks, "report": words})

    def _write_end(self, record: Mapping[str, object]) -> None:
        told = {name: record[name] for name in ("exit_code", "cause", "report")}
        self._write_event({"event": "Verdict", **told})
        self._write("verdict.json", record)

    def write_flights(self, dumps: Iterable[tuple[int, bytes]]) -> None:
        """What the ranks' flight recorders held, as torch wrote it."""
        folder = self._folder / "flight"
        for rank, dump in dumps:
            folder.mkdir(exist_ok=True)
            (folder / f"rank_{rank}").write_bytes(dump)

    def write_census(self, name: str, text: str) -> None:
        """Where the ranks were, with their stacks."""
        folder = self._folder / "census"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.txt").write_text(text, encoding="utf-8", errors="surrogateescape")

    def close(self) -> None:
        self._events.close()
        self._usage.close()

    def _write(self, name: str, record: object) -> None:
        (self._folder / name).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
