"""Saves of one engine: at once, or from a snapshot in the background (`checkpoint.async`).

A thread takes a snapshot of this rank's tensors in host memory, which is kept for the next one, then writes
it and agrees with the other ranks on a group of its own. One save is on its way at a time.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from dslaunch.engine import log
from dslaunch.engine.checkpoint_save import SaveJob, carry_out
from dslaunch.engine.checkpoint_snapshot import Snapshot, SnapshotMemory
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.ranks import Ranks


class Saves:
    """Carries out the saves of an engine, one after another."""

    def __init__(self, ranks: Ranks, background: Ranks | None) -> None:
        self._ranks = ranks
        self._background = background  # None: every save is written at once
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self._memory = SnapshotMemory()

    def take(self, job: SaveJob) -> None:
        """Write `job`, or begin a snapshot of what it needs and return; then `finish` tells how it went."""
        if self._background is None:
            carry_out(job, self._ranks)
            return
        snapshot = self._memory.begin(job.contents.tensors, job.contents.states)
        job = replace(job, contents=replace(job.contents, tensors=snapshot.tensors, states={}))
        group = self._background.hold()
        # Not a daemon: the interpreter waits for it at exit.
        self._thread = threading.Thread(target=self._write, args=(snapshot, job, group), name="checkpoint")
        self._thread.start()

    def finish(self) -> None:
        """Wait until nothing is being written; CheckpointError if the last background save failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, snapshot: Snapshot, job: SaveJob, ranks: Ranks) -> None:
        tag = job.request.tag
        snapshot.finish()
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
