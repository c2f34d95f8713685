"""`--console`: whose output is shown. Pure."""

from __future__ import annotations

import re

from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.plan import LaunchPlan

_RANKS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def shown_ranks(console: str, plan: LaunchPlan) -> frozenset[int]:
    """The ranks whose lines reach the console, of those that this process starts. Raises UsageError.

    `all`; `rank0`; `first-of-node`: local rank 0 of every node; `node`: all ranks of the first node; or ranks
    and ranges of them, `0,4-7`.
    """
    launched = [(node, rank) for node in plan.launched for rank in node.ranks]
    match console:
        case "all":
            return frozenset(rank.rank for _, rank in launched)
        case "rank0":
            return frozenset(rank.rank for _, rank in launched if rank.rank == 0)
        case "first-of-node":
            return frozenset(node.ranks[0].rank for node in plan.launched)
        case "node":
            return frozenset(rank.rank for rank in plan.launched[0].ranks)
        case _ if _RANKS.fullmatch(console):
            return _listed(console, plan.world_size)
    raise UsageError(
        f"--console {console!r} names no ranks", "use all, rank0, first-of-node, node, or ranks such as 0,4-7"
    )


def _listed(console: str, world_size: int) -> frozenset[int]:
    ranks: set[int] = set()
    for part in console.split(","):
        first, _, last = part.partition("-")
        ranks.update(range(int(first), int(last or first) + 1))
    beyond = [rank for rank in ranks if rank >= world_size]
    if beyond:
        raise UsageError(
            f"--console names rank {min(beyond)} of {world_size}", f"ranks are 0 to {world_size - 1}"
        )
    return frozenset(ranks)
