"""The jobs of `scripts/bench ops`: the same step by every implementation, on the same buffers.

Jobs: fp32 (master, gradient and moments fp32, 28 bytes an element); bf16 (bf16 gradient in, bf16 parameter
out, the job of ZeRO with masters, 28 bytes too; torch and DeepSpeed need passes for the casts); many small
tensors; denormal moments. Ceilings, `~`: on CPUs the same streams without arithmetic, with and without
prefetch; on GPUs a copy.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

import torch

from benchmarks.ops_ceiling import traffic
from dslaunch.engine.ops import FusedAdamW
from dslaunch.engine.ops.adamw import AdamWStep
from dslaunch.engine.ops.shard import Shard
from dslaunch.engine.ops.step import step_

_SAMPLE_S = 0.05  # steps are repeated until a sample takes about that long
_HUGE_PAGE_BYTES = 2 << 20
_MADV_HUGEPAGE, _MADV_NOHUGEPAGE = 14, 15
_SMALL, _NUM_SMALL = 4096, 400
_LR, _BETAS, _EPS, _WEIGHT_DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01
STEP = AdamWStep(10, _LR, *_BETAS, _EPS, _WEIGHT_DECAY)


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to do a job, and the bytes the job itself must move."""

    step: Callable[[], object]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    numel: int
    bench: Bench
    implementations: dict[str, Implementation]


@dataclass(frozen=True, slots=True)
class Bench:
    """Where it runs."""

    device: torch.device
    huge: bool
    realtime: bool = False  # while a sample lasts, nothing else may have our cores; needs root

    def time(self, step: Callable[[], object]) -> float:
        """Seconds of one step, of as many as make a sample."""
        once = self._time(step, 1)
        if not self.realtime:
            return self._time(step, max(1, int(_SAMPLE_S / max(once, 1e-6))))
        _schedule(os.SCHED_FIFO)
        try:
            return self._time(step, max(1, int(_SAMPLE_S / max(once, 1e-6))))
        finally:
            _schedule(os.SCHED_OTHER)

    def _time(self, step: Callable[[], object], repeats: int) -> float:
        if self.device.type == "cpu":
            start = time.perf_counter()
            for _ in range(repeats):
                step()
            return (time.perf_counter() - start) / repeats
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(repeats):
            step()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / repeats

    def describe(self) -> str:
        if self.device.type == "cuda":
            return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
        pages = "huge" if self.huge else "small"
        load = os.getloadavg()[0]
        return f"{torch.get_num_threads()} threads, {pages} pages, load {load:.1f}, torch {torch.__version__}"

    def empty(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Uninitialized, at the start of a huge page where those are asked for."""
        if self.device.type == "cuda":
            return torch.empty(numel, dtype=dtype, device=self.device)
        padding = _HUGE_PAGE_BYTES // dtype.itemsize
        room = torch.empty(numel + 2 * padding, dtype=dtype)
        start = -room.data_ptr() % _HUGE_PAGE_BYTES // dtype.itemsize
        view = room[start : start + numel]
        length = numel * dtype.itemsize // 4096 * 4096
        advice = _MADV_HUGEPAGE if self.huge else _MADV_NOHUGEPAGE
        ctypes.CDLL(None).madvise(ctypes.c_void_p(view.data_ptr()), ctypes.c_size_t(length), advice)
        return view


def _schedule(policy: int) -> None:
    """For every thread of this process."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(thread), policy, os.sched_param(1 if policy == os.SCHED_FIFO else 0))


class Buffers:
    """What a step of `numel` elements reads and writes."""

    def __init__(self, bench: Bench, numel: int, low: bool) -> None:
        self._bench = bench
        self.theta, self.grad = bench.empty(numel).normal_(0, 0.02), bench.empty(numel).normal_(0, 0.02)
        self.m, self.v = bench.empty(numel).fill_(1e-3), bench.empty(numel).fill_(1e-4)
        self.low_grad = bench.empty(numel, torch.bfloat16).copy_(self.grad) if low else None
        self.low_param = bench.empty(numel, torch.bfloat16).copy_(self.theta) if low else None

    def ours(self, low_moments: bool = False) -> Callable[[], object]:
        grad = self.grad if self.low_grad is None else self.low_grad
        moments = (self.m, self.v)
        if low_moments:
            new = self._bench.empty
            moments = (
                new(len(grad), torch.bfloat16).copy_(self.m),
                new(len(grad), torch.bfloat16).copy_(self.v),
            )
        shard = Shard(self.theta, moments, grad, self.low_param)
        return lambda: step_(STEP, [shard])

    def with_casts(self, step: Callable[[], object]) -> Callable[[], object]:
        """`step` on fp32, with what torch must do before and after for the bf16 job."""
        low_grad, low_param = self.low_grad, self.low_param
        if low_grad is None or low_param is None:
            return step

        def whole() -> None:
            self.grad.copy_(low_grad)
            step()
            low_param.copy_(self.theta)

        return whole

    def peer(self, kind: Callable[..., torch.optim.Optimizer], **options: object) -> Callable[[], object]:
        p = torch.nn.Parameter(self.theta)
        p.grad = self.grad
        optimizer = kind([p], lr=_LR, betas=_BETAS, eps=_EPS, weight_decay=_WEIGHT_DECAY, **options)
        on = self.theta.device if options.get("fused") else torch.device("cpu")
        step: object = torch.zeros((), device=on)
        optimizer.state[p] = {"step": step, "exp_avg": self.m, "exp_avg_sq": self.v}
        return self.with_casts(optimizer.step)


def jobs(bench: Bench, numel: int) -> Iterator[Job]:
    """One after another, so that only one has its buffers."""
    for low in (False, True):
        yield _flat("bf16" if low else "fp32", bench, Buffers(bench, numel, low), numel)
    if bench.device.type == "cpu" and numel <= 1 << 24:
        yield _denormal(bench, numel)
    yield _small_tensors(bench) if bench.device.type == "cpu" else _model_tensors(bench, numel)


def _flat(name: str, bench: Bench, buffers: Buffers, numel: int) -> Job:
    num_bytes = 28 * numel
    found = _ceilings(bench, buffers, numel)
    found["dslaunch"] = Implementation(buffers.ours(), num_bytes)
    found["dslaunch, bf16 moments"] = Implementation(buffers.ours(low_moments=True), 20 * numel)
    found["torch fused"] = Implementation(buffers.peer(torch.optim.AdamW, fused=True), num_bytes)
    found["torch foreach"] = Implementation(buffers.peer(torch.optim.AdamW, foreach=True), num_bytes)
    if (deepspeed := _deepspeed(bench)) is not None:
        found["DeepSpeed"] = Implementation(buffers.peer(deepspeed), num_bytes)
    return Job(name, numel, bench, found)


def _ceilings(bench: Bench, buffers: Buffers, numel: int) -> dict[str, Implementation]:
    if bench.device.type == "cuda":
        num_bytes = 2 * buffers.grad.numel() * 4
        return {"~copy": Implementation(lambda: buffers.m.copy_(buffers.v), num_bytes)}
    streams = (buffers.theta, buffers.grad, buffers.m, buffers.v)
    return {
        f"~traffic{' with prefetch' if prefetch else ''}": Implementation(
            traffic(streams, prefetch=prefetch), 28 * numel
        )
        for prefetch in (False, True)
    }


def _denormal(bench: Bench, numel: int) -> Job:
    """Rows of an embedding that get no gradient: their moments decay into denormals and stay."""
    normal, tiny = Buffers(bench, numel, False), Buffers(bench, numel, False)
    tiny.grad.zero_()
    tiny.m.fill_(1e-40)
    found = _ceilings(bench, normal, numel)
    for data, what in ((normal, ""), (tiny, " on denormals")):
        found[f"dslaunch{what}"] = Implementation(data.ours(), 28 * numel)
    found["torch fused on denormals"] = Implementation(tiny.peer(torch.optim.AdamW, fused=True), 28 * numel)
    return Job("denormal moments", numel, bench, found)


def _small_tensors(bench: Bench) -> Job:
    return _tensors(f"{_NUM_SMALL} tensors of {_SMALL}", bench, [_SMALL] * _NUM_SMALL)


def _model_tensors(bench: Bench, numel: int) -> Job:
    sizes = decoder_sizes(numel)
    return _tensors(f"{len(sizes)} tensors of a decoder {sizes[-1]} wide", bench, sizes)


def decoder_sizes(numel: int) -> list[int]:
    """Shapes of a decoder of about `numel`: per layer, four matrices and two vectors of the width."""
    width = 64
    while 12 * (2 * width) ** 2 * 24 <= numel:
        width *= 2
    layer = [3 * width * width, width * width, 4 * width * width, 4 * width * width, width, width]
    return layer * 24


def _tensors(name: str, bench: Bench, sizes: list[int]) -> Job:
    numel = sum(sizes)
    found = _ceilings(bench, Buffers(bench, numel, False), numel)
    peers: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, object]]] = {
        "dslaunch FusedAdamW": (FusedAdamW, {}),
        "torch fused": (torch.optim.AdamW, {"fused": True}),
        "torch foreach": (torch.optim.AdamW, {"foreach": True}),
    }
    if (deepspeed := _deepspeed(bench)) is not None:
        peers["DeepSpeed"] = (deepspeed, {})
    for peer, (kind, options) in peers.items():
        params = [torch.nn.Parameter(torch.randn(size, device=bench.device)) for size in sizes]
        for p in params:
            p.grad = torch.randn_like(p)
        found[peer] = Implementation(kind(params, lr=_LR, **options).step, 28 * numel)
    return Job(name, numel, bench, found)


def _deepspeed(bench: Bench) -> Callable[..., torch.optim.Optimizer] | None:
    try:
        adam = import_module("deepspeed.ops.adam")
    except ImportError:
        return None
    name = "FusedAdam" if bench.device.type == "cuda" else "DeepSpeedCPUAdam"
    kind: Callable[..., torch.optim.Optimizer] = getattr(adam, name)
    return kind
