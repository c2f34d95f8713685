"""A pool of real ranks: four processes that import torch once and form a gloo group of any size for every
job.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO, cast

import rank_worker

HERE = Path(__file__).parent
JOB_TIMEOUT_S = 100.0


class RankError(Exception):
    """A job raised on some rank; the text holds every rank's traceback."""


class RankPool:
    """Runs functions of tests/engine/*.py on 1 to 4 ranks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._workers: list[subprocess.Popen[bytes]] = []
        self._num_jobs = 0

    def run(self, world: int, module: str, function: str, *arguments: object) -> list[object]:
        """The results of `function(*arguments)` by rank; RankError if one raises, dies or takes too long."""
        self._start(world)
        self._num_jobs += 1
        rendezvous = self._directory / f"rendezvous-{self._num_jobs}"
        workers = self._workers[:world]
        for rank, worker in enumerate(workers):
            job = (module, function, arguments, world, rank, rendezvous)
            rank_worker.send(cast(BinaryIO, worker.stdin), job)
        answers = self._collect(workers)
        failed = [f"rank {rank}:\n{text}" for rank, (kind, text) in enumerate(answers) if kind != "ok"]
        if failed:
            raise RankError("\n".join(failed))
        return [value for _, value in answers]

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.communicate()
        self._workers = []

    def _start(self, world: int) -> None:
        environ = dict(
            os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", PYTHONPATH=str(HERE.parents[1] / "src")
        )
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            environ.pop(name, None)
        while len(self._workers) < world:
            command = [sys.executable, "-W", "error", str(HERE / "rank_worker.py")]
            self._workers.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
            )

    def _collect(self, workers: list[subprocess.Popen[bytes]]) -> list[tuple[str, object]]:
        deadline = time.monotonic() + JOB_TIMEOUT_S
        answers: list[tuple[str, object]] = [("lost", "no answer in time")] * len(workers)
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(workers):
                selector.register(cast(BinaryIO, worker.stdout), selectors.EVENT_READ, rank)
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    try:
                        answers[key.data] = cast("tuple[str, object]", rank_worker.receive(key.fileobj))
                    except EOFError:
                        answers[key.data] = ("lost", f"died: {workers[key.data].wait()}")
                    selector.unregister(key.fileobj)
        if any(kind == "lost" for kind, _ in answers):
            self.close()
        return answers
