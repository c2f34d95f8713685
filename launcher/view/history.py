"""What happened in a run, out of the lines of `events.jsonl`: attempts, nodes and ranks. Pure.

All times are in seconds since the run was opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Record = Mapping[str, Any]


@dataclass(slots=True)
class RankLife:
    """One rank's process; None for what has not happened. `node_rank` and `slot` say where."""

    rank: int
    node_rank: int
    slot: int
    started_s: float | None = None
    spoke_s: float | None = None
    ended_s: float | None = None
    returncode: int | None = None


@dataclass(slots=True)
class NodeLife:
    """One node: when its agent was there, and when and why it was gone."""

    node_rank: int
    host: str
    ready_s: float | None = None
    closed_s: float | None = None
    reason: str = ""
    ranks: dict[int, RankLife] = field(default_factory=dict)


@dataclass(slots=True)
class Attempt:
    """One start of the job. `report` are the words it ended with; `exit_code` is None while it runs."""

    opened_s: float
    planned_s: float | None = None
    ended_s: float | None = None
    job_id: str = ""
    master: str = ""
    exit_code: int | None = None
    report: tuple[str, ...] = ()
    nodes: dict[int, NodeLife] = field(default_factory=dict)

    @property
    def ranks(self) -> list[RankLife]:
        return [rank for node in self.nodes.values() for rank in node.ranks.values()]


@dataclass(frozen=True, slots=True)
class History:
    """A run that was opened at `opened_ns` since the epoch, and heard of for `length_s`."""

    opened_ns: int
    length_s: float
    attempts: tuple[Attempt, ...]


def records(lines: Iterable[str]) -> Iterator[Record]:
    """The whole lines; a run that was killed may have torn the last one."""
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("launcher_time_ns"), int):
            yield record


def history(lines: Iterable[str]) -> History:
    """Of the last run that these lines tell of. Raises ValueError where they tell of none."""
    events: list[Record] = []
    for event in records(lines):
        if event.get("event") == "Opened":
            events.clear()
        events.append(event)
    if not events:
        raise ValueError("no events")
    opened_ns = int(events[0]["launcher_time_ns"])
    attempts: list[Attempt] = []
    at_s = 0.0
    for event in events:
        at_s = (int(event["launcher_time_ns"]) - opened_ns) / 1e9
        if not attempts or attempts[-1].exit_code is not None:
            attempts.append(Attempt(opened_s=at_s))
        _take(attempts[-1], event, at_s)
    for attempt in attempts:
        attempt.nodes = dict(sorted(attempt.nodes.items()))
    return History(opened_ns, at_s, tuple(attempts))


def _take(attempt: Attempt, event: Record, at_s: float) -> None:
    match event.get("event"):
        case "LookedOver":
            attempt.opened_s = at_s
        case "Plan":
            attempt.planned_s, attempt.job_id = at_s, event["job_id"]
            attempt.master = f"{event['master']['addr']}:{event['master']['port']}"
            _place(attempt, event["nodes"])
        case "Ready":
            node = _node(attempt, event)
            node.ready_s, node.host = at_s, node.host or event["hostname"]
        case "AgentClosed":
            node = _node(attempt, event)
            node.closed_s, node.reason = at_s, event["reason"]
        case "Started":
            _rank(attempt, event).started_s = at_s
        case "FirstOutput":
            _rank(attempt, event).spoke_s = at_s
        case "Exited":
            rank = _rank(attempt, event)
            rank.ended_s, rank.returncode = at_s, event["returncode"]
        case "Verdict":
            attempt.ended_s, attempt.exit_code = at_s, event["exit_code"]
            attempt.report = tuple(event["report"])


def _place(attempt: Attempt, nodes: Sequence[Record]) -> None:
    """The plan names hosts, ranks and their slots."""
    for node_rank, planned in enumerate(nodes):
        node = attempt.nodes.setdefault(node_rank, NodeLife(node_rank, ""))
        node.host = planned["host"]
        node.ranks = {
            int(rank): RankLife(int(rank), node_rank, slot) for rank, slot in planned["ranks"].items()
        }


def _node(attempt: Attempt, event: Record) -> NodeLife:
    node_rank = int(event["node_rank"])
    return attempt.nodes.setdefault(node_rank, NodeLife(node_rank, ""))


def _rank(attempt: Attempt, event: Record) -> RankLife:
    node, rank = _node(attempt, event), int(event["rank"])
    return node.ranks.setdefault(rank, RankLife(rank, node.node_rank, rank))
