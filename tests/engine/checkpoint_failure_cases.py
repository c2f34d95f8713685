"""Runs on the ranks: saves that fail, ranks that die, and checkpoints that are damaged or do not fit."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch.distributed as dist
from checkpoint_engines import engine_of, state_of, train, unequal

import dslaunch.engine as deepspeed
from dslaunch.engine import checkpoint_save, log


def background_failure(directory: str) -> tuple[str, bool]:
    """The directory cannot be written any more once the save has begun; what the next call says."""
    engine = engine_of(1, False, 1, checkpoint={"async": True})
    engine.save_checkpoint(directory, tag="good")
    engine.wait_for_checkpoint()
    if dist.get_rank() == 0:
        Path(directory, "bad").write_text("not a directory, and in the way of a rename")
        Path(directory, ".bad.replaced").write_text("")
    dist.barrier()
    engine.save_checkpoint(directory, tag="bad")
    with pytest.raises(deepspeed.CheckpointError) as caught:
        engine.wait_for_checkpoint()
    dist.barrier()
    engine.save_checkpoint(directory, tag="better")
    engine.wait_for_checkpoint()
    return caught.value.what, Path(directory, ".bad.saving").exists()


def restart(directory: str, resume: bool) -> tuple[object, str]:
    """As a script does at its start: the path of what was loaded, or the error; and what was warned."""
    engine = engine_of(2, False, 2)
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log.logger.addHandler(handler)
    log.logger.setLevel(logging.WARNING)
    os.environ["DSLAUNCH_RESUME"] = "1" if resume else ""
    try:
        told: object = engine.load_checkpoint(directory)[0]
    except deepspeed.CheckpointError as error:
        told = str(error)
    finally:
        del os.environ["DSLAUNCH_RESUME"]
        log.logger.removeHandler(handler)
    return told, "\n".join(record.getMessage() for record in records)


def refuse_to_load(directory: str, **options: bool) -> tuple[str, list[str]]:
    """The words of the error, and which state has changed in spite of it."""
    engine = engine_of(1, False, 1)
    before = state_of(engine)
    with pytest.raises(deepspeed.CheckpointError) as caught:
        engine.load_checkpoint(directory, **options)
    return str(caught.value), unequal(before, state_of(engine))


def die_while_saving(directory: str, seed: int) -> None:
    """Save once; then write all files of a second checkpoint and die before it is put into place."""
    engine = engine_of(1, False, 1)
    train(engine, 2, seed)
    engine.save_checkpoint(directory)
    train(engine, 1, seed)
    request = checkpoint_save.SaveRequest(Path(directory), "global_step2", {}, True, False)
    checkpoint_save.write_files(checkpoint_save.prepare(engine, request), dist.get_rank())
    dist.barrier()
    os._exit(9)


def loads_what_was_saved_last(directory: str, seed: int) -> int:
    """Load, check against training anew, save again over the remains."""
    engine = engine_of(1, False, 3)
    engine.load_checkpoint(directory)
    twin = engine_of(1, False, 1)
    train(twin, 2, seed)
    assert unequal(state_of(engine), state_of(twin)) == []
    train(engine, 1, seed)
    engine.save_checkpoint(directory, tag="global_step2")
    fresh = engine_of(0, False, 3)
    fresh.load_checkpoint(directory)
    assert unequal(state_of(engine), state_of(fresh)) == []
    return fresh.global_steps


def refuse_to_save(directory: str) -> list[str]:
    engine = engine_of(1, False, 1)
    said = []
    bad_states: list[dict[str, object]] = [{"x": pytest.raises}, {}]
    for number, state in enumerate(bad_states):
        tag = "ok" if number == 0 else f"rank{dist.get_rank()}"
        with pytest.raises(deepspeed.CheckpointError) as caught:
            engine.save_checkpoint(directory, tag=tag, client_state=state)
        said.append(caught.value.what)
    for tag in ("a/b", ".hidden"):
        with pytest.raises(deepspeed.CheckpointError) as caught:
            engine.save_checkpoint(directory, tag=tag)
        said.append(caught.value.what)
    return said


def a_disk_that_refuses(directory: str) -> str:
    """The directory to save to lies below a file."""
    engine = engine_of(1, False, 1)
    with pytest.raises(deepspeed.CheckpointError) as caught:
        engine.save_checkpoint(directory)
    return caught.value.what


def full_disk(directory: str, asynchronous: bool) -> tuple[str, list[str]]:
    """Save, fill the disk, fail to save, make room, save; the error, and what was not as it should be."""
    engine = engine_of(1, False, 1, checkpoint={"async": asynchronous})
    filler = Path(directory, "filler")

    def save(tag: str) -> None:
        engine.save_checkpoint(directory, tag=tag)
        engine.wait_for_checkpoint()

    save("first")
    kept = state_of(engine)
    train(engine, 1, 1)
    if dist.get_rank() == 0:
        room = os.statvfs(directory)
        filler.write_bytes(bytes(room.f_bavail * room.f_bsize - 8_000))  # less than a checkpoint
    dist.barrier()
    with pytest.raises(deepspeed.CheckpointError) as caught:
        save("second")
    fresh = engine_of(2, False, 2)
    fresh.load_checkpoint(directory)
    wrong = unequal(kept, state_of(fresh))
    if dist.get_rank() == 0:
        wrong += [str(path) for path in Path(directory).glob(".*")]
        filler.unlink()
    dist.barrier()
    save("second")
    fresh.load_checkpoint(directory)
    return caught.value.what, wrong + unequal(state_of(engine), state_of(fresh))
