"""Saving: every rank its file, one rank of each storage the manifest, then one rename."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.engine import checkpoint_files as files
from dslaunch.engine import checkpoint_manifest as manifests
from dslaunch.engine import log, zero_to_fp32
from dslaunch.engine.checkpoint_contents import Contents, What, collect
from dslaunch.engine.checkpoint_files import FileSum
from dslaunch.engine.checkpoint_storage import Storage, find_storage
from dslaunch.engine.errors import CheckpointError
from dslaunch.engine.ranks import Ranks, raise_first, words_of
from dslaunch.engine.tensor_files import write_tensors

if TYPE_CHECKING:
    from dslaunch.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """Where to save, and what besides the engine's own state."""

    save_dir: Path
    tag: str
    client_state: Mapping[str, object]
    save_latest: bool
    exclude_frozen_parameters: bool
    keep_last: int = 0  # 0: keep all


@dataclass(frozen=True, slots=True)
class SaveJob:
    """A save of which all is known: what is left is files."""

    request: SaveRequest
    storage: Storage
    contents: Contents

    @property
    def directory(self) -> Path:
        """Where the files are until all are there."""
        return files.saving_dir(self.request.save_dir, self.request.tag)


_in_use: set[Path] = set()  # directories this process writes to, in the background too


def save(engine: Engine, request: SaveRequest) -> None:
    """Write the checkpoint, or start to. Collective.

    A failure on one rank raises on all and replaces nothing.
    """
    engine.saves.finish()
    ranks = engine.ranks
    ranks.enter("save_checkpoint")
    if engine.micro_steps % engine.batch_sizes.accumulation:
        log.warn(engine.global_rank, "saving between accumulation steps: the gradients so far are not saved")
    engine.saves.take(prepare(engine, request))


def prepare(engine: Engine, request: SaveRequest) -> SaveJob:
    """Agree on what to save, collect it and make room for it. Collective."""
    ranks = engine.ranks
    what = What(request.tag, request.client_state, request.exclude_frozen_parameters)
    collected: list[Contents] = []
    error = ranks.attempt(lambda: collected.append(collect(engine, what)))
    told = ranks.gather((request.tag, time.time(), words_of(error)))
    tags = [tag for tag, _, _ in told]
    if len(set(tags)) > 1:
        raise CheckpointError(f"ranks save under different tags: {', '.join(tags)}", "pass the same tag")
    files.checked_tag(request.tag)
    raise_first(failed for _, _, failed in told)
    contents = replace(collected[0], manifest=replace(collected[0].manifest, saved_at=told[0][1]))
    job = SaveJob(request, find_storage(ranks, request.save_dir), contents)

    def make_room() -> None:
        if job.storage.leads:
            _in_use.add(job.directory)
            files.clear_remains(request.save_dir, _in_use)
            files.fresh_dir(job.directory)

    ranks.settle(ranks.attempt(make_room))
    return job


def carry_out(job: SaveJob, ranks: Ranks) -> None:
    """Write everything and put it into place. Collective over `ranks`."""
    sums: dict[str, FileSum] = {}
    error = ranks.attempt(lambda: sums.update(write_files(job, ranks.world.rank)))
    gathered = ranks.gather(sums)
    try:
        ranks.settle(error)
        ranks.settle(ranks.attempt(lambda: _put_into_place(job, gathered)))
    except CheckpointError:
        if job.storage.leads:
            shutil.rmtree(job.directory, ignore_errors=True)
        raise
    finally:
        _in_use.discard(job.directory)
    if job.storage.leads:
        _tell_progress(job.request.tag)


def write_files(job: SaveJob, rank: int) -> dict[str, FileSum]:
    """Write this rank's files; returns their checksums by name."""
    job.directory.mkdir(parents=True, exist_ok=True)  # it is there; this asks the file server anew
    name = job.contents.manifest.shards[rank]
    written = {name: write_tensors(job.directory / name, job.contents.tensors)}
    if job.contents.state is not None:
        written[manifests.STATE_FILE] = files.write(job.directory / manifests.STATE_FILE, job.contents.state)
    return written


def _put_into_place(job: SaveJob, gathered: list[dict[str, FileSum]]) -> None:
    if not job.storage.leads:
        return
    request, sums = job.request, {}
    for rank, written in enumerate(gathered):
        for name, expected in written.items():
            if job.storage.shares(rank) and not (job.directory / name).is_file():
                raise CheckpointError(
                    f"rank {rank} wrote {name}, but rank {job.storage.rank} does not see it "
                    f"in {job.directory}",
                    "save to a directory that all ranks of a node share",
                )
            sums[name] = expected
    manifests.write(replace(job.contents.manifest, files=sums), job.directory)
    files.commit(request.save_dir, request.tag, request.save_latest)
    zero_to_fp32.place_beside(request.save_dir)
    if request.keep_last:
        files.remove_old(request.save_dir, request.keep_last, request.tag)


def _tell_progress(tag: str) -> None:
    """Name the newest whole checkpoint to who supervises this rank and asks for it by a variable."""
    told = os.environ.get("DSLAUNCH_PROGRESS_FILE")
    if told:
        with contextlib.suppress(OSError), open(told, "w") as file:  # a hint: the checkpoint is what counts
            file.write(tag)
