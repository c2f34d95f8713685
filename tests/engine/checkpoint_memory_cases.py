"""Runs on the ranks: the memory that saving and loading takes."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
import torch.distributed as dist

import dslaunch.engine as deepspeed


def extra_memory(directory: str, stage: int) -> tuple[int, int, int]:
    """Bytes of this rank's shard, and by how much saving and loading it raised the peak of its memory."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(24)))
    config = {
        "train_batch_size": dist.get_world_size(),
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": stage},
        "log_level": "error",
    }
    engine = deepspeed.initialize(model=model, config=config)[0]
    assert engine.optimizer is not None
    shard_bytes = sum(12 * state.master.kept.numel() for state in engine.optimizer.shards)
    engine.save_checkpoint(directory, tag="warm")
    engine.load_checkpoint(directory, tag="warm")
    rises = []
    for action in (engine.save_checkpoint, engine.load_checkpoint):
        dist.barrier()
        before = anonymous_bytes()
        ended = threading.Event()
        peaks = [before]

        def watch(ended: threading.Event = ended, peaks: list[int] = peaks) -> None:
            while not ended.wait(0.001):
                peaks.append(anonymous_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        action(directory, tag="it")
        ended.set()
        watcher.join()
        rises.append(max(peaks) - before)
    return shard_bytes, rises[0], rises[1]


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in status if line.startswith("RssAnon:")))
