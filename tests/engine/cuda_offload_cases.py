"""Offload on GPUs, one process a rank; prints what it finds as JSON. Run by test_cuda_offload.py and
`scripts/bench offload`.

Every configuration trains several times: with all copies waited for at once, with none, with copies that are
late, and with compute that is late. The bits must not differ: a wait that is missing, or memory that is given
away too early, shows in one of them.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

import dslaunch.engine as deepspeed
from dslaunch.engine.lanes import Mark, StreamLane, Waitable
from dslaunch.engine.late_gather import VARIABLE

WIDTH, NUM_BLOCKS, NUM_STEPS, LR = 1024, 6, 4, 0.01
LATE_CYCLES = 1_000_000  # of the GPU's clock: half a millisecond, of a copy's 0.04
OPTIMIZER: dict[str, object] = {"offload_optimizer": {"device": "cpu"}}
BOTH: dict[str, object] = {**OPTIMIZER, "offload_param": {"device": "cpu"}}


@dataclass(frozen=True)
class Way:
    """One configuration."""

    stage: int
    offload: dict[str, object]
    dtype: str = "bf16"
    clipping: float = 1.0
    accumulation: int = 1
    more: dict[str, object] = field(default_factory=dict)
    late: bool = False  # forwards wait block by block
    moments: str = "fp32"


WAYS = {
    "stage 1": Way(1, OPTIMIZER),
    "stage 2, accumulation": Way(2, OPTIMIZER, accumulation=2),
    "stage 2, half": Way(2, {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}),
    "stage 2, eager": Way(2, OPTIMIZER, clipping=0.0, more={"check_grad_overflow": False}),
    "stage 2, fp16": Way(2, OPTIMIZER, "fp16"),
    "stage 2, fp32": Way(2, OPTIMIZER, "fp32"),
    "stage 2, pageable": Way(2, {"offload_optimizer": {"device": "cpu", "pin_memory": False}}),
    "stage 3": Way(3, OPTIMIZER),
    "stage 2, waiting by block": Way(2, OPTIMIZER, late=True),
    "stage 2, waiting by block, eager, low moments": Way(
        2, OPTIMIZER, clipping=0.0, more={"check_grad_overflow": False}, late=True, moments="bf16"
    ),
    "stage 3, parameters": Way(3, BOTH),
    "stage 3, parameters, waiting by block": Way(3, BOTH, late=True),
    "stage 3, parameters, eager": Way(3, BOTH, clipping=0.0, more={"check_grad_overflow": False}),
}


class Stack(torch.nn.Module):
    """Blocks large enough that copies take as long as kernels."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.late = late
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
            for _ in range(NUM_BLOCKS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.late:
                x = _Late.apply(x)  # type: ignore[no-untyped-call]
            x = x + block(x)
        return x


class _Late(torch.autograd.Function):
    """The identity, after a while, both ways."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        _sleep()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        _sleep()
        return grad


def _sleep() -> None:
    if torch.cuda.is_available():
        torch.cuda._sleep(LATE_CYCLES)  # type: ignore[no-untyped-call]


class Lanes(AbstractContextManager["Lanes"]):
    """Replaces how a stream lane runs its work."""

    def __init__(self, around: Callable[[Callable[[], object]], object], wait: bool) -> None:
        self._around, self._wait, self._own = around, wait, StreamLane.run

    def __enter__(self) -> Lanes:
        own, around, wait = self._own, self._around, self._wait

        def run(lane: StreamLane, work: Callable[[], object], *after: Waitable) -> Mark:
            mark = own(lane, functools.partial(around, work), *after)
            if wait:
                torch.cuda.synchronize()
            return mark

        StreamLane.run = run  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        StreamLane.run = self._own  # type: ignore[method-assign]


def late(work: Callable[[], object]) -> None:
    _sleep()
    work()
    _sleep()


def plainly(work: Callable[[], object]) -> None:
    work()


SCHEDULES: dict[str, tuple[Callable[[], AbstractContextManager[object]], bool]] = {
    "one after another": (lambda: Lanes(plainly, True), False),
    "as it comes": (nullcontext, False),
    "late copies": (lambda: Lanes(late, False), False),
    "late compute": (nullcontext, True),
}


def engine_of(way: Way, is_late: bool, offloads: bool = True) -> deepspeed.Engine:
    torch.manual_seed(5)
    config = {
        "train_micro_batch_size_per_gpu": 64,
        "gradient_accumulation_steps": way.accumulation,
        "gradient_clipping": way.clipping,
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "moment_dtype": way.moments}},
        "fp16": {"enabled": way.dtype == "fp16", "initial_scale_power": 8},
        "bf16": {"enabled": way.dtype == "bf16", **way.more},
        "zero_optimization": {
            "stage": way.stage,
            "reduce_bucket_size": WIDTH * WIDTH + WIDTH,
            **(way.offload if offloads else {}),
        },
        "log_level": "error",
    }
    model = Stack(is_late)
    os.environ[VARIABLE] = str(int(way.late))
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def train(engine: deepspeed.Engine, way: Way) -> list[torch.Tensor]:
    """Losses and norms, then masters and moments."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[way.dtype]
    generator = torch.Generator().manual_seed(7 + engine.global_rank)
    said: list[float] = []
    for _ in range(NUM_STEPS):
        for _ in range(way.accumulation):
            x = torch.randn(64, WIDTH, generator=generator).to(engine.device, dtype)
            loss = (engine(x).float() - x.float().roll(1, 1)).square().mean()
            engine.backward(loss)
            engine.step()
            said.append(loss.item())
        said.append(engine.get_global_grad_norm() or 0.0)
    assert engine.optimizer is not None
    states = [
        state.read(kind, slice(None)).cpu() for state in engine.optimizer.shards for kind in state.kinds
    ]
    return [torch.tensor(said), *states]


def differences(name: str) -> dict[str, object]:
    """Which schedules change bits, and how far the masters are from training without offload."""
    way = WAYS[name]
    results = {}
    for schedule, (lanes, is_late) in SCHEDULES.items():
        with lanes():
            engine = engine_of(way, is_late)
            results[schedule] = train(engine, way)
            engine.destroy()
        del engine
        gc.collect()
    first = results["one after another"]
    changed = [
        schedule
        for schedule, found in results.items()
        if not all(map(torch.equal, first, found)) or len(first) != len(found)
    ]
    engine = engine_of(way, False, offloads=False)
    without = train(engine, way)
    engine.destroy()
    return {
        "changed": changed,
        "loss": (first[0] - without[0]).abs().max().item(),
        "master_mean": None if len(first) != len(without) else _mean_gap(first, without),
    }


def _mean_gap(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    gaps = [(x - y).abs().flatten() for x, y in zip(a[1::3], b[1::3], strict=True) if x.shape == y.shape]
    return torch.cat(gaps).mean().item() if gaps else 0.0


def copies() -> dict[str, object]:
    """The kinds of copies in a step, and what memory is held on the GPU, over that of the parameters."""
    way = WAYS["stage 1"]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    engine = engine_of(way, False)
    train(engine, way)
    held = torch.cuda.memory_allocated() - before
    x = torch.randn(64, WIDTH, device=engine.device, dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        engine.backward(engine(x).float().square().mean())
        engine.step()
        torch.cuda.synchronize()
    names: dict[str, int] = {}
    for event in profiler.events() or []:
        if event.device_type.name == "CUDA" and "Memcpy" in event.name and "DtoD" not in event.name:
            names[event.name] = names.get(event.name, 0) + 1
    assert engine.optimizer is not None
    num_buckets = len(engine.optimizer.buckets)
    parameters = sum(p.numel() * 2 for p in engine.module.parameters())
    peak = torch.cuda.max_memory_allocated() - before
    engine.destroy()
    return {"copies": names, "buckets": num_buckets, "held": held / parameters, "peak": peak / parameters}


def main() -> None:
    deepspeed.init_distributed()
    names = sys.argv[1].split(";") if len(sys.argv) > 1 and sys.argv[1] else list(WAYS)
    found: dict[str, object] = {name: differences(name) for name in names}
    if torch.cuda.is_available() and dist.get_world_size() == 1:
        found["copies"] = copies()
    gathered: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, found)
    if dist.get_rank() == 0:
        print(json.dumps(gathered), flush=True)


if __name__ == "__main__":
    main()
