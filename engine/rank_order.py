"""Whether all ranks are at the same place of the model, asked through the store of the process group."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from dslaunch.engine import collectives
from dslaunch.engine.batch import World
from dslaunch.engine.errors import EngineError

TIMEOUT_S = 120.0
TIMEOUT_VARIABLE = "DSLAUNCH_ORDER_TIMEOUT_S"

_engines = itertools.count()


class RankOrder:
    """Compares a place with every other rank's, once a call; no collective is involved."""

    def __init__(self, world: World, device: torch.device) -> None:
        """Collective: rank 0 chooses the keys, as the ranks may have made different numbers of engines."""
        number = torch.tensor(next(_engines), device=device)
        collectives.broadcast(number)
        self._world = world
        self._prefix = f"dslaunch/order/{int(number)}"
        self._num_calls = 0

    def compare(self, where: str) -> None:
        """EngineError naming the ranks and their places unless every rank says `where`."""
        if self._world.size == 1:
            return
        store = dist.distributed_c10d._get_default_store()
        number, rank = self._num_calls, self._world.rank
        self._num_calls += 1
        store.set(self._key(number, rank), where)
        limit_s = float(os.environ.get(TIMEOUT_VARIABLE) or TIMEOUT_S)
        for other in range(self._world.size):
            if other == rank:
                continue
            try:
                store.wait([self._key(number, other)], timedelta(seconds=limit_s))
            except RuntimeError:
                raise EngineError(
                    f"rank {rank} needs the parameters of {where}, but rank {other} has not come to that "
                    f"module within {limit_s:.0f} s: it runs other modules, or has ended",
                    _HINT,
                ) from None
            theirs = store.get(self._key(number, other)).decode()
            if theirs != where:
                raise EngineError(
                    f"the ranks run different modules: rank {rank} needs the parameters of {where}, "
                    f"rank {other} those of {theirs}",
                    _HINT,
                )
        if number >= 2:  # all have read it: they are past the comparison after it
            store.delete_key(self._key(number - 2, rank))

    def _key(self, number: int, rank: int) -> str:
        return f"{self._prefix}/{number}/{rank}"


_HINT = (
    "at stage 3 every rank must run the same modules in the same order; mark a module whose inside depends "
    "on the data with set_z3_leaf_modules"
)
