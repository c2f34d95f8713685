"""`engine.offload_states` and `reload_states`: an idle engine's memory on the device given to others.

Tensors keep their place and lose their storage until they are brought back, so that every view of them is as
it was. What ZeRO-Offload keeps on the host is there already.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import torch

from dslaunch.engine.buckets import Bucket
from dslaunch.engine.errors import EngineError
from dslaunch.engine.host_memory import host_empty, pinned_empty
from dslaunch.engine.sharded import ShardedBucket

KINDS = ("optim_states", "hp_params", "lp_params", "lp_grads", "contiguous_grad_buffer")


class Parking:
    """What is parked."""

    def __init__(self) -> None:
        self._parked: list[tuple[str, torch.Tensor, torch.Tensor]] = []  # kind, bytes on the device, copy

    def park(self, kind: str, tensors: Iterator[torch.Tensor], pin: bool) -> None:
        """Copy what is behind `tensors` to the host and free it."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.size() == 0:
                continue
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            copy = (pinned_empty if pin else host_empty)(storage.size(), torch.uint8).copy_(whole)
            storage.resize_(0)
            self._parked.append((kind, whole, copy))

    def bring_back(self) -> None:
        """All of it."""
        for _, whole, copy in self._parked:
            whole.untyped_storage().resize_(len(copy))
            whole.copy_(copy)
        self._parked = []

    def check(self, doing: str, *kinds: str) -> None:
        """EngineError if one of `kinds` (default: any) is parked."""
        for kind, _, _ in self._parked:
            if not kinds or kind in kinds:
                raise EngineError(f"{doing} while {kind} are offloaded", "call engine.reload_states() first")


def chosen_kinds(include: Container[object] | None) -> list[str]:
    """The names behind `include`, strings or DeepSpeed's OffloadStateTypeEnum; None: all."""
    if include is None:
        return list(KINDS)
    given = [getattr(item, "value", item) for item in list(include)]  # type: ignore[call-overload]
    unknown = [item for item in given if item not in KINDS]
    if unknown:
        raise EngineError(
            f"offload_states: there are no states {unknown[0]!r}", f"name some of {', '.join(KINDS)}"
        )
    return [kind for kind in KINDS if kind in given]


def tensors_of(kind: str, buckets: list[Bucket]) -> Iterator[torch.Tensor]:
    """The tensors of that kind that are on the device, about to be taken from there."""
    for bucket in buckets:
        bucket.claim()
        if kind == "lp_params":
            if not isinstance(bucket, ShardedBucket):
                yield bucket.params
            elif bucket.lane is None:
                yield bucket.param_shard
        elif kind == "lp_grads" and bucket.grad_shard is not None:
            yield bucket.grad_shard
        elif bucket.state is not None and bucket.host is None:
            if kind == "optim_states":
                yield from bucket.state.states.values()
            elif kind == "hp_params" and not bucket.state.master.is_param:
                yield bucket.state.master.kept
