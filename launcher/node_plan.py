"""All that one agent needs to run its node's ranks; it looks nothing up. Travels with the agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


def node_id(job_id: str, node_rank: int) -> str:
    """The mark that every process of a node carries as DSLAUNCH_NODE_ID."""
    return f"{job_id}.{node_rank}"


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One process: its place in the job, what is executed, and the environment of its own.

    `slot` is the device index on the host.
    """

    rank: int
    local_rank: int
    slot: int
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One host's part of the job.

    A rank's environment is the host's own, then `env`, then the rank's `env`. `script` is checked for
    existence before anything starts ("" where there is none to check).
    """

    job_id: str
    node_rank: int
    host: str
    cwd: str
    script: str
    env: Mapping[str, str]
    ranks: tuple[RankPlan, ...]
    grace_s: float
    lease_s: float

    @property
    def node_id(self) -> str:
        return node_id(self.job_id, self.node_rank)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> NodePlan:
        """The inverse of `to_json`. Raises ValueError, KeyError or TypeError on other text."""
        record = json.loads(text)
        ranks = tuple(
            RankPlan(rank["rank"], rank["local_rank"], rank["slot"], tuple(rank["argv"]), rank["env"])
            for rank in record.pop("ranks")
        )
        return NodePlan(ranks=ranks, **record)
