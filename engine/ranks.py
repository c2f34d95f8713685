"""What ranks agree on outside of training: that all are here, who failed, what rank 0 says."""

from __future__ import annotations

import os
import pickle
import socket
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from safetensors import SafetensorError

from dslaunch.engine.batch import World
from dslaunch.engine.errors import CheckpointError

T = TypeVar("T")
GroupRef = Callable[[], dist.ProcessGroup | None]  # a weak reference

ENTER_TIMEOUT_S = 30.0  # how far apart ranks may arrive at a checkpoint
_FIRST_BYTES = 1024  # what a gather sends at once: nearly all it is ever given
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
    leaders: tuple[int, ...] = (0,)  # by rank: the first rank on the same host

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The group of everything but `enter`."""
        return None if self.control is None else _alive(self.control)

    def hold(self) -> Ranks:
        """The same ranks, whose group lives on while this is held, even if the script destroys all groups."""
        group = self.group
        return Ranks(self.world, None if group is None else lambda: group)

    def enter(self, call: str) -> None:
        """Wait until every rank has made `call`; CheckpointError when one ends or does not in time."""
        if self.door is None:
            return
        started = time.monotonic()
        try:
            # The timeout given here binds rank 0 only; the others wait as long as the group allows.
            dist.monitored_barrier(_alive(self.door), _enter_timeout(), wait_all_ranks=True)
        except RuntimeError as error:
            took_s = time.monotonic() - started
            if took_s < _enter_timeout().total_seconds() / 2:
                raise CheckpointError(
                    f"a rank was lost while rank {self.world.rank} waited for it in {call}",
                    "see why the other ranks have ended",
                ) from None
            raise CheckpointError(
                f"{call} was not called by every rank: "
                f"rank {self.world.rank} waited {took_s:.0f} s ({error})",
                f"call {call} on every rank, not on rank 0 alone; "
                f"{ENTER_TIMEOUT_VARIABLE} sets how long ranks wait for each other",
            ) from None

    def gather(self, value: T) -> list[T]:
        """Every rank's `value`, in order of rank."""
        group = self.group
        if group is None:
            return [value]
        data = pickle.dumps(value)
        data = len(data).to_bytes(8, "little") + data
        found = _all_gather(group, data[:_FIRST_BYTES].ljust(_FIRST_BYTES, b"\0"))
        sizes = [8 + int.from_bytes(one[:8], "little") for one in found]
        if max(sizes) > _FIRST_BYTES:
            found = _all_gather(group, data.ljust(max(sizes), b"\0"))
        return [cast(T, pickle.loads(one[8:size])) for one, size in zip(found, sizes, strict=True)]

    def send(self, tensor: torch.Tensor, rank: int) -> None:
        """Send a tensor in host memory to `rank`, which calls `receive`."""
        group = self.group
        assert group is not None
        group.send([tensor.view(torch.uint8)], rank, 0).wait()

    def receive(self, tensor: torch.Tensor, rank: int) -> None:
        """Fill a tensor in host memory with what `rank` sends."""
        group = self.group
        assert group is not None
        group.recv([tensor.view(torch.uint8)], rank, 0).wait()

    def from_first(self, value: T) -> T:
        """Rank 0's `value`."""
        return self.gather(value if self.world.rank == 0 else None)[0]  # type: ignore[return-value]

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
        raise_first(self.gather(words_of(error)))


def words_of(error: CheckpointError | None) -> tuple[str, str] | None:
    """An error as it travels."""
    return None if error is None else (error.what, error.hint)


def raise_first(told: Iterable[tuple[str, str] | None]) -> None:
    """Raise the first error of all ranks, if there is one."""
    for words in told:
        if words is not None:
            raise CheckpointError(*words)


def join(world: World) -> Ranks:
    """Make the groups. Collective."""
    if world.size == 1:
        return Ranks(world)
    group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
    door = dist.new_group(backend="gloo", timeout=_enter_timeout())
    assert isinstance(group, dist.ProcessGroup)
    assert isinstance(door, dist.ProcessGroup)
    dist.barrier(group)  # a rank that is done early must not leave while others still connect
    ranks = Ranks(world, weakref.ref(group), weakref.ref(door))
    hosts = ranks.gather(os.environ.get("DSLAUNCH_HOST") or socket.gethostname())
    return replace(ranks, leaders=tuple(hosts.index(host) for host in hosts))


def join_background(world: World) -> Ranks:
    """The ranks with one more group, for a thread beside the training. Collective."""
    if world.size == 1:
        return Ranks(world)
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return Ranks(world, weakref.ref(group))


def _all_gather(group: dist.ProcessGroup, data: bytes) -> list[bytes]:
    """Every rank's bytes, of one length; by the group itself, which torch.distributed may have forgotten."""
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    found = [torch.empty_like(own) for _ in range(group.size())]
    group.allgather([found], [own]).wait()
    return [one.numpy().tobytes() for one in found]


def _alive(group: GroupRef) -> dist.ProcessGroup:
    found = group()
    if found is None:
        raise CheckpointError("the process group has been destroyed", "save and load before destroying it")
    return found


def _enter_timeout() -> timedelta:
    return timedelta(seconds=float(os.environ.get(ENTER_TIMEOUT_VARIABLE) or ENTER_TIMEOUT_S))
