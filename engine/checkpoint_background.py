"""Saves of one engine: at once, or from a snapshot in the background (`checkpoint.async`).

A snapshot is a copy of this rank's tensors in host memory, which is kept for the next one. A thread then
writes it and agrees with the other ranks on a group of its own. One save is on its way at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import torch

from dslaunch.engine import log
from dslaunch.engine.checkpoint_save import SaveJob, carry_out
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.ranks import Ranks
from dslaunch.engine.tensor_files import Deferred, pieces_of


class Saves:
    """Carries out the saves of an engine, one after another."""

    def __init__(self, ranks: Ranks, background: Ranks | None) -> None:
        self._ranks = ranks
        self._background = background  # None: every save is written at once
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self._host = HostCopies()

    def take(self, job: SaveJob) -> None:
        """Write `job`, or copy what it needs and return; then `finish` tells how it went."""
        if self._background is None:
            carry_out(job, self._ranks)
            return
        contents = replace(job.contents, tensors=self._host.copy(job.contents.tensors))
        group = self._background.hold()
        # Not a daemon: the interpreter waits for it at exit.
        self._thread = threading.Thread(
            target=self._write, args=(replace(job, contents=contents), group), name="checkpoint"
        )
        self._thread.start()

    def finish(self) -> None:
        """Wait until nothing is being written; CheckpointError if the last background save failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, job: SaveJob, ranks: Ranks) -> None:
        tag = job.request.tag
        try:
            carry_out(job, ranks)
        except CheckpointError as error:
            self._error = CheckpointError(f"the checkpoint {tag} was not saved: {error.what}", error.hint)
        except RuntimeError as error:  # of the collectives: a rank has gone
            self._error = CheckpointError(
                f"the checkpoint {tag} was not saved: {str(error).strip().splitlines()[0]}",
                "see why the other ranks have ended",
            )
        if self._error is not None:
            log.warn(ranks.world.rank, self._error.what)


class HostCopies:
    """Host memory that snapshots are copied into, the same each time; pinned for a GPU's tensors."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, torch.Tensor | Deferred]) -> dict[str, torch.Tensor]:
        """The tensors' values in host memory, as they are when this returns."""
        for name in self._kept.keys() - tensors.keys():
            del self._kept[name]
        on_gpu = False
        for name, tensor in tensors.items():
            kept = self._kept.get(name)
            if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
                kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                self._kept[name] = kept
            room = kept.view(-1)
            for piece in pieces_of(tensor):
                room[: piece.numel()].view(piece.shape).copy_(piece, non_blocking=tensor.is_cuda)
                room = room[piece.numel() :]
            on_gpu = on_gpu or tensor.is_cuda
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return dict(self._kept)
