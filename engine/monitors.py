"""Where events go: csv files, TensorBoard, Weights & Biases. An event is a name, a value and its x.

x is the number of samples trained on so far, as in DeepSpeed. Rank 0 writes; elsewhere nothing is opened.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from dslaunch.engine.config_observe import CsvMonitorConfig, TensorboardConfig, WandbConfig
from dslaunch.engine.config_values import EngineConfig
from dslaunch.engine.errors import EngineError


class Event(NamedTuple):
    """One point of one curve."""

    name: str
    value: float
    num_samples: int


class Monitor(Protocol):
    """One place where events go."""

    def write(self, events: Sequence[Event]) -> None: ...

    def close(self) -> None: ...


class Monitors:
    """`engine.monitor`: every monitor that the config switches on, on rank 0."""

    def __init__(self, monitors: Sequence[Monitor] = ()) -> None:
        self._monitors = list(monitors)

    @property
    def enabled(self) -> bool:
        """Whether any event would be written here."""
        return bool(self._monitors)

    def write_events(self, events: Sequence[tuple[str, float, int]]) -> None:
        """Write (name, value, samples) triples, the script's own as well as the engine's."""
        for monitor in self._monitors:
            monitor.write([Event(*event) for event in events])

    def close(self) -> None:
        """Write out what is buffered; later events are dropped."""
        while self._monitors:
            self._monitors.pop().close()


class CsvMonitor:
    """One file per name, `Train_Samples_lr.csv`, with the columns step and lr; a later run appends."""

    def __init__(self, config: CsvMonitorConfig) -> None:
        self._directory = Path(config.output_path) / config.job_name
        self._directory.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[str]] = {}

    def write(self, events: Sequence[Event]) -> None:
        """Append a row for each event."""
        for name, value, num_samples in events:
            if name not in self._files:
                self._files[name] = self._open(name)
            csv.writer(self._files[name]).writerow([num_samples, value])
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.popitem()[1].close()

    def _open(self, name: str) -> IO[str]:
        path = self._directory / f"{name.replace('/', '_')}.csv"
        file = path.open("a", newline="", encoding="utf-8")
        if path.stat().st_size == 0:
            csv.writer(file).writerow(["step", name.rpartition("/")[2]])
        return file


class TensorboardMonitor:
    """Scalars through a `torch.utils.tensorboard.SummaryWriter`."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, events: Sequence[Event]) -> None:
        """Add a scalar for each event."""
        for name, value, num_samples in events:
            self._writer.add_scalar(name, value, num_samples)
        self._writer.flush()

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()


class WandbMonitor:
    """A run of Weights & Biases; `wandb` is the imported package."""

    def __init__(self, wandb: Any, config: WandbConfig) -> None:
        self._run = wandb.init(project=config.project, group=config.group, entity=config.team)

    def write(self, events: Sequence[Event]) -> None:
        """Log events of equal x together."""
        for num_samples in dict.fromkeys(event.num_samples for event in events):
            self._run.log(
                {event.name: event.value for event in events if event.num_samples == num_samples},
                step=num_samples,
            )

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def open_monitors(config: EngineConfig, rank: int) -> Monitors:
    """The monitors of a config, opened on rank 0; EngineError on every rank that misses a package."""
    for section, package in (("tensorboard", "tensorboard"), ("wandb", "wandb")):
        if getattr(config, section).enabled and find_spec(package) is None:
            raise EngineError(
                f"{section} is enabled in the config, but the package {package} is not installed",
                f"pip install {package}, or use csv_monitor, which needs nothing",
            )
    if rank != 0:
        return Monitors()
    monitors: list[Monitor] = []
    if config.tensorboard.enabled:
        monitors.append(TensorboardMonitor(_summary_writer(config.tensorboard)))
    if config.csv_monitor.enabled:
        monitors.append(CsvMonitor(config.csv_monitor))
    if config.wandb.enabled:
        monitors.append(WandbMonitor(importlib.import_module("wandb"), config.wandb))
    return Monitors(monitors)


def _summary_writer(config: TensorboardConfig) -> Any:
    directory = Path(config.output_path) / config.job_name
    return importlib.import_module("torch.utils.tensorboard").SummaryWriter(log_dir=str(directory))
