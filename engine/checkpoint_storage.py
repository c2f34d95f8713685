"""Which ranks see the same checkpoint directory: all of them, or those of a node.

Ranks of one host share its files. Whether hosts share a directory, they find out by files they leave there
for each other. On each storage one rank, its leader, makes, renames and removes directories.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from dslaunch.engine.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Storage:
    """The leader of every rank's storage, by rank."""

    rank: int
    leader_of: tuple[int, ...]

    @property
    def leads(self) -> bool:
        """Whether this rank is the one to make and rename directories."""
        return self.leader_of[self.rank] == self.rank

    def shares(self, rank: int) -> bool:
        """Whether `rank` sees the files this rank sees."""
        return self.leader_of[rank] == self.leader_of[self.rank]


def find_storage(ranks: Ranks, save_dir: Path) -> Storage:
    """Who shares `save_dir`. Collective where there are several hosts.

    CheckpointError where a host cannot write there.
    """
    leader = ranks.leaders
    own = leader[ranks.world.rank]
    is_leader = own == ranks.world.rank
    if len(set(leader)) == 1:
        return Storage(ranks.world.rank, leader)
    token = ranks.from_first(secrets.token_hex(8))
    probe = save_dir / f".seen-{token}-{ranks.world.rank}"

    def leave_probe() -> None:
        save_dir.mkdir(parents=True, exist_ok=True)
        probe.touch()

    ranks.settle(ranks.attempt(leave_probe) if is_leader else None)
    others = sorted(set(leader))
    seen = [rank for rank in others if (save_dir / f".seen-{token}-{rank}").exists()] if is_leader else []
    first_seen = ranks.gather(min(seen, default=own))
    if is_leader:
        probe.unlink(missing_ok=True)
    return Storage(ranks.world.rank, tuple(first_seen[rank] for rank in leader))
