"""Everything that looks at a run without changing it, behind the three calls the engine makes.

Nothing here waits for the device unless the config asks for something that needs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass

import torch

from dslaunch.engine import comms_log, log
from dslaunch.engine.batch import BatchSizes, World
from dslaunch.engine.comms_log import CommsLog
from dslaunch.engine.config_values import EngineConfig
from dslaunch.engine.flops_profiler import FlopsProfiler
from dslaunch.engine.monitors import open_monitors
from dslaunch.engine.throughput import Throughput, memory_gib, memory_words
from dslaunch.engine.timers import PHASES, Phase, PhaseTimers

_STEPS_PER_PRINT = 10  # of wall_clock_breakdown, where steps_per_print does not say

_IDLE: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the run is after an optimizer step."""

    global_steps: int
    global_samples: int
    skipped_steps: int
    micro_steps: int
    lr: list[float]
    mom: list[object]
    epoch: int = 0
    loss_scale: float | None = None  # None: there is no loss scale


class Watch:
    """Timers, throughput, memory, monitors, profiler and comms log of one engine."""

    def __init__(
        self, config: EngineConfig, module: torch.nn.Module, world: World, device: torch.device
    ) -> None:
        self._config = config
        self._world = world
        self._device = device
        self.monitors = open_monitors(config, world.rank)
        self._timers = PhaseTimers(device) if config.wall_clock_breakdown else None
        self._throughput = None
        if config.throughput.enabled and config.steps_per_print is not None:
            self._throughput = Throughput(device, config.throughput.synchronized)
        self._profiler = FlopsProfiler(config.flops_profiler, module, device, world.rank)
        self._step = 1  # the optimizer step that is being made
        self._loss: torch.Tensor | None = None  # summed over the micro steps
        self._unwritten: tuple[torch.Tensor, int] | None = None
        self._idle = not (self._timers or config.memory_breakdown or config.flops_profiler.enabled)
        if config.comms_logger.enabled:
            comms_log.activate(CommsLog(config.comms_logger, world.size))
        if config.dump_state:
            for line in describe(config).splitlines():
                log.say(world.rank, line)

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        """What the engine runs a phase in."""
        return _IDLE if self._idle else self._watched(phase)

    def loss(self, loss: torch.Tensor) -> None:
        """A micro step's share of the optimizer step's loss, for the monitors; read a step later."""
        if self.monitors.enabled:
            share = loss.detach().float()
            self._loss = share if self._loss is None else self._loss + share

    def is_told(self, global_steps: int) -> bool:
        """Whether anybody will hear of this step, so that what is told of it has to be final."""
        every = self._config.steps_per_print
        return self.monitors.enabled or (every is not None and global_steps % every == 0)

    def finished(self, progress: Progress, batch: BatchSizes) -> None:
        """An optimizer step is through: count, and say and write what is due."""
        every = self._config.steps_per_print
        due = every is not None and progress.global_steps % every == 0
        if due:
            log.say(
                self._world.rank,
                f"step={progress.global_steps}, skipped={progress.skipped_steps}, "
                f"lr={progress.lr}, mom={progress.mom}",
            )
        if self._throughput is not None:
            self._throughput.count(batch.train)
            if due:
                self._say_throughput(self._throughput, progress)
        self._profiler.finished(self._step, batch, self._world.size)
        self._step += 1
        times_ms = self._times_ms(progress.global_steps)
        if self.monitors.enabled:
            self._write(progress, times_ms)

    def close(self) -> None:
        """Write out what is left."""
        self._write_loss()
        self.monitors.close()

    @contextmanager
    def _watched(self, phase: Phase) -> Iterator[None]:
        with (
            self._profiler.phase(phase, self._step),
            _IDLE if self._timers is None else self._timers.lap(phase),
        ):
            yield
        if self._config.memory_breakdown:
            allocated, most = memory_gib(self._device)
            log.say(
                self._world.rank,
                f"after {phase}: MemAllocated={allocated}GB, MaxMemAllocated={most}GB",
            )

    def _say_throughput(self, throughput: Throughput, progress: Progress) -> None:
        speed = throughput.read()
        if speed is not None:
            log.say(
                self._world.rank,
                f"epoch={progress.epoch}/micro_step={progress.micro_steps}/"
                f"global_step={progress.global_steps}, "
                f"RunningAvgSamplesPerSec={speed.average:.6g}, CurrSamplesPerSec={speed.current:.6g}, "
                f"{memory_words(self._device)}",
            )

    def _times_ms(self, global_steps: int) -> dict[Phase, float]:
        every = self._config.steps_per_print or _STEPS_PER_PRINT
        if self._timers is None or global_steps % every:
            return {}
        times_ms = self._timers.take_ms(every)
        words = " | ".join(f"{PHASES[phase]}: {ms:.2f}" for phase, ms in times_ms.items())
        log.say(self._world.rank, f"time (ms) | {words}")
        return times_ms

    def _write(self, progress: Progress, times_ms: dict[Phase, float]) -> None:
        x = progress.global_samples
        self._write_loss()
        if self._loss is not None:
            self._unwritten, self._loss = (self._loss, x), None
        events = [("Train/Samples/lr", progress.lr[0], x)]
        if progress.loss_scale is not None:
            events.append(("Train/Samples/loss_scale", progress.loss_scale, x))
        events += [(f"Train/Samples/elapsed_time_ms_{phase}", ms, x) for phase, ms in times_ms.items()]
        self.monitors.write_events(events)

    def _write_loss(self) -> None:
        """The loss of the step before: by now the device has computed it, and nobody waits."""
        if self._unwritten is not None:
            loss, x = self._unwritten
            self._unwritten = None
            self.monitors.write_events([("Train/Samples/train_loss", loss.item(), x)])


def describe(config: EngineConfig) -> str:
    """The whole configuration, defaults included, as indented JSON."""
    return json.dumps(asdict(config), indent=2, default=str)
