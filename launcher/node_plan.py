"""All that one agent needs to run its node's ranks; it looks nothing up. Travels with the agent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple


def node_id(job_id: str, node_rank: int) -> str:
    """The mark that every process of a node carries as DSLAUNCH_NODE_ID."""
    return f"{job_id}.{node_rank}"


def silence_s(lease_s: float) -> float:
    """How long the other side may be silent: its loss is known early enough to be clean within the lease."""
    return lease_s - min(3.0, lease_s / 5)


def orphan_grace_s(lease_s: float) -> float:
    """What ranks get to heed SIGTERM once nobody waits for them; the rest of the lease is for killing."""
    return min(2.5, lease_s / 6)


class RankPlan(NamedTuple):
    """One process: its place in the job, what is executed, and the environment of its own.

    `slot` is the device index on the host.
    """

    rank: int
    local_rank: int
    slot: int
    argv: tuple[str, ...]
    env: Mapping[str, str]


class NodePlan(NamedTuple):
    """One host's part of the job.

    A rank's environment is `defaults`, then the host's own, then `env`, then the rank's `env`; in the values
    of variables named by `expanded`, `$NAME` stands for the host's own variables. `script` is checked for
    existence before anything starts ("" where there is none to check). `bound_cores` are the cores that
    ranks are bound to, as in `0,2-4`, "" for all of the host, None for no binding. The rank `stdin_rank`
    reads what the user types. Not `hears_launcher` where no heartbeat can come down.
    `engine`: what `import deepspeed` shall find, "auto", "bundled" or "installed". Where the launcher
    `keeps_output` in files, ranks wait for a way to it that is full, and else what they write is dropped.
    """

    job_id: str
    node_rank: int
    host: str
    cwd: str
    script: str
    defaults: Mapping[str, str]
    env: Mapping[str, str]
    expanded: tuple[str, ...]
    bound_cores: str | None
    stdin_rank: int | None
    ranks: tuple[RankPlan, ...]
    grace_s: float
    lease_s: float
    hears_launcher: bool
    engine: str
    keeps_output: bool = False

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**self._asdict(), "ranks": [rank._asdict() for rank in self.ranks]}

    @property
    def node_id(self) -> str:
        return node_id(self.job_id, self.node_rank)


def plans_to_json(plans: Iterable[NodePlan]) -> str:
    """A JSON list, in order."""
    return json.dumps([plan.as_dict() for plan in plans])


def plan_from_json(text: str, index: int) -> NodePlan:
    """One of `plans_to_json`'s. Raises ValueError, LookupError or TypeError on other text."""
    record = json.loads(text)[index]
    ranks = tuple(
        RankPlan(rank["rank"], rank["local_rank"], rank["slot"], tuple(rank["argv"]), rank["env"])
        for rank in record.pop("ranks")
    )
    return NodePlan(ranks=ranks, expanded=tuple(record.pop("expanded")), **record)
