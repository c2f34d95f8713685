"""One rank of the checkpoint benchmark: saves and loads the same state by every subject, prints JSON.

Subjects: `dslaunch` and `dslaunch async` (the engine), `dcp` and `dcp async` (torch.distributed.checkpoint,
of DTensors of the same shards), `deepspeed` where it is installed. All write fp32 masters and two moments,
of ZeRO 3 or its like, in rounds one after the other. Times are the slowest rank's. Training stalls in the
call that saves, and where the step after it waits for the snapshot; beside, the step takes longer for what is
done in the background on the same cores.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import dslaunch.engine as engine_module
from dslaunch.engine.buckets import ShardState

WIDTH = 1024
STATE_BYTES = 12  # an element: master, two moments


class Memory:
    """The process's anonymous memory beyond what it was at the start, at its peak; sampled every 2 ms."""

    def __init__(self) -> None:
        self._base, self.peak_bytes = anonymous_bytes(), 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes() - self._base)

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self.peak_bytes


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


class Samples:
    """What was measured, by subject and figure."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, list[float]]] = {}

    @contextmanager
    def timed(self, subject: str, name: str) -> Iterator[None]:
        """The slowest rank's seconds, and the largest peak of its memory."""
        gc.collect()
        dist.barrier()
        memory = Memory()
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        found = torch.tensor([seconds, float(memory.stop())], dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        figures = self.found.setdefault(subject, {})
        figures.setdefault(f"{name}_s", []).append(found[0].item())
        figures.setdefault(f"{name}_extra_bytes", []).append(found[1].item())


def model_of(num_layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(num_layers)))


def config_of(**more: object) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 3},  # parameters stay shards, as they do in the others
        "log_level": "error",
        **more,
    }


def step_once(engine: Any, rows: int) -> None:
    engine.backward(engine(torch.ones(rows, WIDTH, device=engine.device)).square().mean())
    engine.step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Waiting:
    """Adds up the seconds that training waits for a save. On a GPU the compute stream's are not seen."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self.seconds += time.perf_counter() - self._start

    def watch_claims(self) -> None:
        """Count what optimizer steps wait for snapshots."""
        claim = ShardState.claim

        def timed(state: ShardState) -> None:
            with self:
                claim(state)

        ShardState.claim = timed  # type: ignore[assignment]


waiting = Waiting()
Wait = Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """What is measured: `save` returns what waits until all is on disk."""

    step: Callable[[], None]
    save: Callable[[Path], Wait]
    load: Callable[[Path], object] | None

    def measure(self, name: str, samples: Samples, directory: Path) -> None:
        with samples.timed(name, "step"):
            self.step()
        with samples.timed(name, "total"):
            self.save(directory / "whole")()
        if self.load is not None:
            with samples.timed(name, "load"):
                self.load(directory / "whole")
        clear(directory)
        waiting.seconds = 0.0
        with samples.timed(name, "step_with_save"):
            with waiting:
                wait = self.save(directory / "beside")
            self.step()
        stall = torch.tensor(waiting.seconds, dtype=torch.float64)
        dist.all_reduce(stall, dist.ReduceOp.MAX)
        samples.found[name].setdefault("stall_s", []).append(stall.item())
        wait()
        clear(directory)


def clear(directory: Path) -> None:
    """Remove what was saved; nobody pays for another's dirty pages."""
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(directory)
        os.sync()
    dist.barrier()


def done() -> None:
    """A synchronous save has ended when it returns."""


def dslaunch(num_layers: int, rows: int, asynchronous: bool) -> Subject:
    config = config_of(checkpoint={"async": asynchronous})
    engine = engine_module.initialize(model=model_of(num_layers), config=config)[0]

    def save(directory: Path) -> Wait:
        engine.save_checkpoint(directory, tag="it")
        return engine.wait_for_checkpoint

    load = None if asynchronous else engine.load_checkpoint
    return Subject(lambda: step_once(engine, rows), save, load)


def shards(num_layers: int, device: torch.device) -> dict[str, Any]:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    rows = WIDTH // dist.get_world_size()
    return {
        f"{kind}.{layer}": DTensor.from_local(torch.randn(rows, WIDTH, device=device), mesh, [Shard(0)])
        for layer in range(num_layers)
        for kind in ("master", "exp_avg", "exp_avg_sq")
    }


def torch_dcp(step: Callable[[], None], num_layers: int, asynchronous: bool, device: torch.device) -> Subject:
    state = shards(num_layers, device)
    group = dist.new_group(backend="gloo")  # the step beside uses the default one

    def save(directory: Path) -> Wait:
        if not asynchronous:
            state_dict_saver.save(state, checkpoint_id=directory)
            return done
        pending: Any = state_dict_saver.async_save(state, checkpoint_id=directory, process_group=group)
        return lambda: pending.result()

    def load(directory: Path) -> None:
        state_dict_loader.load(state, checkpoint_id=directory)

    return Subject(step, save, None if asynchronous else load)


def deepspeed(num_layers: int, rows: int) -> Subject:
    theirs: Any = importlib.import_module("deepspeed")
    config = config_of()
    del config["log_level"]
    engine = theirs.initialize(model=model_of(num_layers), config=config)[0]

    def save(directory: Path) -> Wait:
        engine.save_checkpoint(directory, tag="it")
        return done

    return Subject(lambda: step_once(engine, rows), save, engine.load_checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    args = parser.parse_args()
    engine_module.init_distributed()
    waiting.watch_claims()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    ours = dslaunch(args.layers, args.rows, False)
    subjects = {
        "dslaunch": ours,
        "dcp": torch_dcp(ours.step, args.layers, False, device),
        "dslaunch async": dslaunch(args.layers, args.rows, True),
        "dcp async": torch_dcp(ours.step, args.layers, True, device),
    }
    if importlib.util.find_spec("deepspeed") is not None:
        subjects["deepspeed"] = deepspeed(args.layers, args.rows)
    samples = Samples()
    for number in range(args.rounds + 1):
        if number == 1:
            samples.found.clear()  # the first round makes buffers and warms up
        turn = number % len(subjects)  # whoever follows another's removal differs from round to round
        for name, subject in [*subjects.items()][turn:] + [*subjects.items()][:turn]:
            subject.measure(name, samples, args.directory / name.replace(" ", "-"))
    if dist.get_rank() == 0:
        num_bytes = args.layers * WIDTH * WIDTH * STATE_BYTES
        print(json.dumps({"bytes": num_bytes, "subjects": samples.found}))


if __name__ == "__main__":
    main()
