"""Start ranks of a benchmark through dslaunch itself, and read what they and the launcher left."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.process_tree import BenchmarkError
from benchmarks.ranks import PAYLOAD, ROOT
from dslaunch.runner_backends.group import bound_to_us

TIMEOUT_S = 540.0
_LAST_WORDS = 3000


@dataclass(frozen=True, slots=True)
class Where:
    """What the ranks run on: `gpus` (one each), `one_gpu` (all share the first) or `cpu`."""

    name: str

    @property
    def options(self) -> list[str]:
        """dslaunch's: where ranks share a device or need none, it must not give each its own."""
        return ["--no_local_rank", *([] if self.name == "gpus" else ["--accelerator", "cpu"])]

    @property
    def environ(self) -> Mapping[str, str]:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
        if self.name == "one_gpu":
            variables["BENCH_ONE_GPU"] = "1"
        if self.name == "cpu":
            variables["CUDA_VISIBLE_DEVICES"] = ""
        return variables


def found_by(where: Where, world: int, script: str, arguments: Sequence[str]) -> Any:
    """What rank 0 of a payload script writes as JSON. BenchmarkError where the run fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "found.json")
        options = [*where.options, "--num_gpus", str(world), "--quiet"]
        argv = (peers.DSLAUNCH, *options, str(PAYLOAD / script), *arguments, "--out", str(out))
        done = subprocess.run(
            bound_to_us(argv),
            env=where.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode or not out.exists():
            said = done.stdout[-_LAST_WORDS:]
            raise BenchmarkError(f"{script} over {world} ranks ended with {done.returncode}:\n{said}")
        return json.loads(out.read_text())


@dataclass(frozen=True, slots=True)
class Drilled:
    """What came of a drill: seconds from the fault to the command's end, and what was said of it.

    Attributes:
        kind: the cause, by the name of its class in the launcher; empty without a verdict.
        ranks: those that the verdict names.
    """

    exit_s: float
    exit_code: int
    kind: str
    ranks: Sequence[int]
    said: str


def drill(where: Where, world: int, kind: str, options: Sequence[str]) -> Drilled:
    """Let rank 1 crash or stay away. BenchmarkError where the command does not end."""
    with tempfile.TemporaryDirectory() as folder:
        note, run = Path(folder, "note"), Path(folder, "run")
        argv = (peers.DSLAUNCH, *where.options, "--num_gpus", str(world), "--run_dir", str(run), *options)
        started = subprocess.Popen(
            bound_to_us((*argv, str(PAYLOAD / "drill_rank.py"), kind, str(note))),
            env=where.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            said = started.communicate(timeout=180)[1]
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"the {kind} drill had not ended after 180 s") from error
        finally:
            started.terminate()
            started.wait()
        ended_ns = time.time_ns()
        if not note.exists():
            raise BenchmarkError(f"the {kind} drill failed before its fault:\n{said[-_LAST_WORDS:]}")
        cause = json.loads((run / "verdict.json").read_text())["cause"] or {}
        ranks = [cause["end"]["rank"]] if "end" in cause else cause.get("ranks", [])
        return Drilled(
            (ended_ns - int(note.read_text())) / 1e9,
            started.returncode,
            cause.get("kind", ""),
            ranks,
            said[-_LAST_WORDS:],
        )
