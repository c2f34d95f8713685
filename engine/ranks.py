"""What ranks agree on outside of training: that all are here, who failed, what rank 0 says."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch.distributed as dist
from safetensors import SafetensorError

from dslaunch.engine.batch import World
from dslaunch.engine.errors import CheckpointError

T = TypeVar("T")
GroupRef = weakref.ReferenceType[dist.ProcessGroup]

ENTER_TIMEOUT_S = 30.0  # how far apart ranks may arrive at a checkpoint
ENTER_TIMEOUT_VARIABLE = "DSLAUNCH_CHECKPOINT_TIMEOUT_S"


@dataclass(frozen=True, slots=True)
class Ranks:
    """The data-parallel ranks and two gloo groups of them, apart from training's; None for a single rank.

    The groups are only borrowed: a gloo group that outlives destroy_process_group is destroyed while the
    interpreter shuts down, and its threads then abort the process.
    """

    world: World
    control: GroupRef | None = None
    door: GroupRef | None = None  # everything on it ends within the timeout of `enter`

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The group of everything but `enter`."""
        return None if self.control is None else _alive(self.control)

    def enter(self, call: str) -> None:
        """Wait until every rank has made `call`; CheckpointError when one does not within the timeout."""
        if self.door is None:
            return
        started = time.monotonic()
        try:
            # The timeout given here binds rank 0 only; the others wait as long as the group allows.
            dist.monitored_barrier(_alive(self.door), _enter_timeout(), wait_all_ranks=True)
        except RuntimeError as error:
            took_s = time.monotonic() - started
            raise CheckpointError(
                f"{call} was not called by every rank: "
                f"rank {self.world.rank} waited {took_s:.0f} s ({error})",
                f"call {call} on every rank, not on rank 0 alone; "
                f"{ENTER_TIMEOUT_VARIABLE} sets how long ranks wait for each other",
            ) from None

    def gather(self, value: T) -> list[T]:
        """Every rank's `value`, in order of rank."""
        if self.group is None:
            return [value]
        values: list[T | None] = [None] * self.world.size
        dist.all_gather_object(values, value, group=self.group)
        return cast("list[T]", values)

    def from_first(self, value: T) -> T:
        """Rank 0's `value`."""
        if self.group is None:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def attempt(self, action: Callable[[], None]) -> CheckpointError | None:
        """Run `action` here; what goes wrong with files comes back as an error that names the rank."""
        try:
            action()
        except CheckpointError as error:
            return error
        except (OSError, SafetensorError) as error:
            return CheckpointError(
                f"rank {self.world.rank}: {error}", "check the disk's space and permissions, then try again"
            )
        return None

    def settle(self, error: CheckpointError | None) -> None:
        """Raise on every rank the first error that any rank has."""
        for found in self.gather(None if error is None else (error.what, error.hint)):
            if found is not None:
                raise CheckpointError(*found)


def join(world: World) -> Ranks:
    """Make the groups. Collective."""
    if world.size == 1:
        return Ranks(world)
    group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
    door = dist.new_group(backend="gloo", timeout=_enter_timeout())
    assert isinstance(group, dist.ProcessGroup)
    assert isinstance(door, dist.ProcessGroup)
    dist.barrier(group)  # a rank that is done early must not leave while others still connect
    return Ranks(world, weakref.ref(group), weakref.ref(door))


def _alive(group: GroupRef) -> dist.ProcessGroup:
    found = group()
    if found is None:
        raise CheckpointError("the process group has been destroyed", "save and load before destroying it")
    return found


def _enter_timeout() -> timedelta:
    return timedelta(seconds=float(os.environ.get(ENTER_TIMEOUT_VARIABLE) or ENTER_TIMEOUT_S))
