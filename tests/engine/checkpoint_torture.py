"""Kills ranks at random moments of saves, starts them again, and looks at what they find.

`checkpoint_torture.py DIRECTORY --kills 200 --ranks 2 --seed 1`; prints a line of JSON. Every life of the
ranks loads the newest checkpoint as a restarted job does, compares everything with what was noted when that
step was reached, trains on and saves after every step, in the background in every other life, until one rank
or all are killed in the middle of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

import dslaunch.engine as deepspeed

sys.path.insert(0, str(Path(__file__).parent))
LIFE_TIMEOUT_S = 120.0


def live(directory: Path, life: int, rank: int, num_ranks: int, told: int) -> None:
    """One rank of one life; writes a byte to `told` when a save begins. Does not return."""
    from checkpoint_engines import engine_of, state_of, train

    rendezvous = directory / f"rendezvous-{life}"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=num_ranks)
    stage, keep = life % 4, {"async": bool(life % 2), "keep_last": 2}
    engine = engine_of(stage, True, 1 + life % 3, checkpoint=keep)

    def note() -> str:
        digest = hashlib.sha256()
        for name, value in sorted(state_of(engine).items()):
            if not name.endswith("seen"):
                digest.update(name.encode() + value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    path, _ = engine.load_checkpoint(directory / "saved")
    notes, confirmed = directory / "notes", directory / "confirmed"
    at_least = int(confirmed.read_text()) if confirmed.exists() else 0
    if path is not None:
        noted = (notes / str(engine.global_steps)).read_text()
        assert noted == note(), f"step {engine.global_steps} has come back as something else"
    assert engine.global_steps >= at_least, f"step {at_least} was saved, {engine.global_steps} is found"
    dist.barrier()
    while True:
        train(engine, 1, engine.global_steps)
        state = note()
        if rank == 0:
            write_whole(notes / str(engine.global_steps), state)
        dist.barrier()
        os.write(told, b".")
        engine.save_checkpoint(directory / "saved")
        engine.wait_for_checkpoint()
        if rank == 0:
            write_whole(confirmed, str(engine.global_steps))


def write_whole(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_text(text)
    fresh.replace(path)


def start(directory: Path, life: int, num_ranks: int, told: int) -> list[int]:
    """The ranks' processes, forked from this one, which has imported everything and runs no threads."""
    pids = []
    for rank in range(num_ranks):
        pid = os.fork()
        if not pid:
            try:
                live(directory, life, rank, num_ranks, told)
            except BaseException:
                write_whole(directory / f"failed-{life}-{rank}", traceback.format_exc())
            os._exit(1)
        pids.append(pid)
    return pids


def run(directory: Path, num_kills: int, num_ranks: int, seed: int) -> dict[str, int]:
    """Live `num_kills` lives; AssertionError with the ranks' words if one found something else."""
    choose = random.Random(seed)
    (directory / "notes").mkdir(parents=True)
    num_saves = 0
    for life in range(num_kills):
        told, tell = os.pipe()
        pids = start(directory, life, num_ranks, tell)
        os.close(tell)
        for _ in range(choose.choice([1, 1, 2]) * num_ranks):  # a save or two begin on all ranks
            if not select.select([told], [], [], LIFE_TIMEOUT_S)[0] or not os.read(told, 1):
                break
        num_saves += 1
        time.sleep(choose.uniform(0, choose.choice([0.005, 0.03, 0.1])))
        victims = list(pids) if choose.random() < 0.5 else [choose.choice(pids)]
        for pid in [*victims, *pids]:
            os.kill(pid, signal.SIGKILL)
            if pid == victims[-1]:
                time.sleep(choose.uniform(0, 0.02))  # the others go on for a moment
        for pid in pids:
            os.waitpid(pid, 0)
        os.close(told)
        failures = [path for path in directory.glob(f"failed-{life}-*") if not _lost_peer(path)]
        assert not failures, "\n".join(path.read_text() for path in failures)
    found = sorted(path.name for path in (directory / "saved").iterdir())
    whole = [name for name in found if name.startswith("global_step")]
    assert len(whole) <= 3, f"more than the last two and one to be removed are left: {found}"
    return {"lives": num_kills, "saves": num_saves, "steps": int((directory / "confirmed").read_text())}


def _lost_peer(path: Path) -> bool:
    """Whether a rank only tells that the killed one has gone."""
    text = path.read_text()
    return "AssertionError" not in text and (
        "a rank was lost" in text or "was not saved" in text or "gloo" in text
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ["DSLAUNCH_RESUME"] = "1"
    torch.set_num_threads(1)
    deepspeed.initialize  # noqa: B018 - imports the engine before the first fork
    print(json.dumps(run(args.directory, args.kills, args.ranks, args.seed)))


if __name__ == "__main__":
    main()
