"""Snapshots: a rank's tensors copied to host memory while training goes on, until it would change them.

Masters and optimizer states, nearly all of a snapshot, change in optimizer steps and in a few calls of the
engine, each of which first claims the state (`ShardState.claim`). So they are copied during the next forward
and backward: on a GPU by a stream that compute waits for at the claim; elsewhere by the thread that will
write the files, and whoever claims helps. What a script could change by itself is copied before that.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from dslaunch.engine.buckets import ShardState
from dslaunch.engine.host_memory import host_empty, pinned_empty
from dslaunch.engine.lanes import Mark, StreamLane
from dslaunch.engine.tensor_files import Deferred, pieces_of

_PIECE_NUMEL = 1 << 22  # what one thread copies before it looks whether another one has come to help


class Copy(NamedTuple):
    """`out` [n] on the host becomes what `source` is, flattened."""

    out: torch.Tensor
    source: torch.Tensor | Deferred

    def carry_out(self) -> None:
        """On a GPU, queue it to the current stream."""
        at = 0
        for piece in pieces_of(self.source):
            room = self.out[at : at + piece.numel()]
            room.view(piece.shape).copy_(piece, non_blocking=self.source.is_cuda)
            at += piece.numel()

    def split(self) -> list[Copy]:
        """The same in parts for several threads."""
        if isinstance(self.source, Deferred) or not self.source.is_contiguous():
            return [self]
        sides = (torch.split(side.view(-1), _PIECE_NUMEL) for side in (self.out, self.source))
        return [Copy(out, source) for out, source in zip(*sides, strict=True)]


class Snapshot:
    """Copies of `tensors`, as they are now, once `finish` has returned."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.on_host: list[HostCopies] = []
        self.on_device: list[Mark] = []

    def finish(self) -> None:
        """Copy what nobody has claimed yet."""
        for copies in self.on_host:
            copies.wait()
        for mark in self.on_device:
            mark.join()


class HostCopies:
    """Copies from host memory to host memory, done by all who wait for them together."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self._left = deque(part for copy in copies for part in copy.split())
        self._num_under_way = 0
        self._changed = threading.Condition()

    @torch.no_grad()
    def wait(self) -> None:
        """Return when all are done."""
        while (copy := self._begin()) is not None:
            copy.carry_out()
            with self._changed:
                self._num_under_way -= 1
                self._changed.notify_all()
        with self._changed:
            self._changed.wait_for(lambda: self._num_under_way == 0)

    def _begin(self) -> Copy | None:
        with self._changed:
            if not self._left:
                return None
            self._num_under_way += 1
            return self._left.popleft()


class SnapshotMemory:
    """Host memory that snapshots are copied into, the same each time; pinned for a GPU's tensors."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}
        self._lane: StreamLane | None = None

    @torch.no_grad()
    def begin(
        self, tensors: Mapping[str, torch.Tensor | Deferred], states: Mapping[str, ShardState]
    ) -> Snapshot:
        """A snapshot of `tensors`; those that `states` names are copied until their state is claimed."""
        for name in self._kept.keys() - tensors.keys():
            del self._kept[name]
        at_once: list[Copy] = []
        later: dict[int, tuple[ShardState, list[Copy]]] = {}
        for name, tensor in tensors.items():
            copy = Copy(self._memory_for(name, tensor).view(-1), tensor)
            if name in states:
                later.setdefault(id(states[name]), (states[name], []))[1].append(copy)
            else:
                at_once.append(copy)
        snapshot = Snapshot(dict(self._kept))
        for mark in self._start(snapshot, at_once):
            mark.wait()
        for state, copies in later.values():
            state.readers = tuple(self._start(snapshot, copies))
        return snapshot

    def _memory_for(self, name: str, tensor: torch.Tensor | Deferred) -> torch.Tensor:
        kept = self._kept.get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            empty = pinned_empty if tensor.is_cuda else host_empty
            kept = self._kept[name] = empty(tensor.numel(), tensor.dtype).view(tensor.shape)
        return kept

    def _start(self, snapshot: Snapshot, copies: Sequence[Copy]) -> list[Mark | HostCopies]:
        """Have `copies` made from now on; returns what to wait for before their sources change."""
        from_device = [copy for copy in copies if copy.source.is_cuda]
        from_host = [copy for copy in copies if not copy.source.is_cuda]
        started: list[Mark | HostCopies] = []
        if from_host:
            snapshot.on_host.append(HostCopies(from_host))
            started.append(snapshot.on_host[-1])
        if from_device:
            if self._lane is None:
                self._lane = StreamLane(torch.device("cuda", torch.cuda.current_device()))

            def copy_all() -> None:
                for copy in from_device:
                    copy.carry_out()

            snapshot.on_device.append(self._lane.run(copy_all, self._lane.fence()))
            started.append(snapshot.on_device[-1])
        return started
