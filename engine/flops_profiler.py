"""DeepSpeed's `flops_profiler`: parameters, MACs, FLOPs and time of one optimizer step, by module.

FLOPs are counted by torch.utils.flop_counter in the first forward of step `profile_step`. Counting slows
that forward down, so times are taken in the step before it, or, where there is none, in the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from dslaunch.engine import log
from dslaunch.engine.batch import BatchSizes
from dslaunch.engine.config_observe import FlopsProfilerConfig
from dslaunch.engine.flops_report import ModuleProfile, StepProfile, render
from dslaunch.engine.timers import Phase, PhaseTimers


class FlopsProfiler:
    """Told of every phase by the engine; reports once and is idle before and after."""

    def __init__(
        self, config: FlopsProfilerConfig, module: torch.nn.Module, device: torch.device, rank: int
    ) -> None:
        self._config = config
        self._module = module
        self._device = device
        self._rank = rank
        self._timing_step = max(config.profile_step - 1, 1)
        self._timers = PhaseTimers(device)
        self._seconds: dict[torch.nn.Module, float] = {}
        self._flops: dict[str, int] | None = None
        self._times_ms: dict[Phase, float] = {}

    def phase(self, phase: Phase, step: int) -> AbstractContextManager[None]:
        """What the engine runs a phase of optimizer step `step` (from 1) in."""
        if not self._config.enabled or not self._timing_step <= step <= self._config.profile_step:
            return nullcontext()
        stack = ExitStack()
        if step == self._timing_step:
            stack.enter_context(self._timers.lap(phase))
        if phase == "forward":
            if step == self._timing_step and not self._seconds:
                stack.enter_context(self._time_modules())
            if step == self._config.profile_step and self._flops is None:
                stack.enter_context(self._count_flops())
        return _entered(stack)

    def finished(self, step: int, batch: BatchSizes, world_size: int) -> None:
        """Optimizer step `step` is through; on rank 0 this writes the report if it was the one."""
        if not self._config.enabled:
            return
        if step == self._timing_step:
            self._times_ms = self._timers.take_ms(1)
        if step == self._config.profile_step and self._flops is not None:
            profile = self._profile(step, batch, world_size)
            if self._rank == 0:
                self._report(render(profile, self._config))
            self._seconds.clear()

    def _profile(self, step: int, batch: BatchSizes, world_size: int) -> StepProfile:
        kind = type(self._module).__name__
        return StepProfile(
            step,
            self._module_profile(self._module, "", kind),
            world_size,
            batch.micro,
            batch.accumulation,
            *(self._times_ms[phase] / 1e3 for phase in ("forward", "backward", "step")),
        )

    def _module_profile(self, module: torch.nn.Module, name: str, path: str) -> ModuleProfile:
        assert self._flops is not None
        return ModuleProfile(
            name,
            type(module).__name__,
            sum(getattr(param, "ds_numel", param.numel()) for param in module.parameters()),
            self._flops.get(path, 0),
            self._seconds.get(module, 0.0),
            tuple(
                self._module_profile(child, child_name, f"{path}.{child_name}")
                for child_name, child in module.named_children()
            ),
        )

    def _report(self, text: str) -> None:
        if self._config.output_file is None:
            for line in text.splitlines():
                log.say(self._rank, line)
        else:
            path = Path(self._config.output_file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
            log.say(self._rank, f"the flops profile is in {path}")

    @contextmanager
    def _count_flops(self) -> Iterator[None]:
        counter = FlopCounterMode(display=False)
        with counter:
            yield
        self._flops = {name: sum(by_op.values()) for name, by_op in counter.get_flop_counts().items()}

    @contextmanager
    def _time_modules(self) -> Iterator[None]:
        """Time every module's forward; the device is waited for around each, in this one forward only."""
        started: dict[torch.nn.Module, float] = {}

        def before(module: torch.nn.Module, _: Any) -> None:
            started[module] = self._now()

        def after(module: torch.nn.Module, _: Any, __: Any) -> None:
            elapsed = self._now() - started[module]
            self._seconds[module] = self._seconds.get(module, 0.0) + elapsed

        with ExitStack() as hooks:
            for module in self._module.modules():
                hooks.callback(module.register_forward_pre_hook(before).remove)
                hooks.callback(module.register_forward_hook(after).remove)
            yield

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


@contextmanager
def _entered(stack: ExitStack) -> Iterator[None]:
    with stack:
        yield


def get_model_profile(
    model: torch.nn.Module, forward: Callable[[], object], config: FlopsProfilerConfig | None = None
) -> ModuleProfile:
    """The profile of one `forward()` of `model`, apart from any training."""
    device = next((param.device for param in model.parameters()), torch.device("cpu"))
    profiler = FlopsProfiler(config or FlopsProfilerConfig(enabled=True), model, device, 0)
    with torch.no_grad(), profiler.phase("forward", 1):
        forward()
    return profiler._module_profile(model, "", type(model).__name__)
