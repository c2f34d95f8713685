"""The sections of a ds_config about watching a run and about recomputing activations. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from dslaunch.engine.config_answers import setting


@dataclass(frozen=True, slots=True)
class ThroughputConfig:
    """`timers.throughput`: the samples-per-second line."""

    enabled: bool = setting(True, "measure samples per second, and say them every `steps_per_print` steps")
    synchronized: bool = setting(
        True, "wait for the device when the line is due (never in between), so that it tells finished work"
    )


@dataclass(frozen=True, slots=True)
class CommsLoggerConfig:
    """`comms_logger`: what every kind of collective has moved, and how fast."""

    enabled: bool = setting(False, "count, weigh and time the engine's collectives; each is waited for")
    prof_all: bool = setting(True, "log every kind of collective")
    prof_ops: tuple[str, ...] = setting((), "the kinds to log where `prof_all` is false, e.g. `all_reduce`")
    verbose: bool = setting(False, "one line for every collective as it ends")
    debug: bool = setting(False, "name the engine's function that issued it in the verbose line")


@dataclass(frozen=True, slots=True)
class FlopsProfilerConfig:
    """`flops_profiler`: parameters, MACs, FLOPs and time of one optimizer step, by module."""

    enabled: bool = setting(False, "profile step `profile_step`; switches `wall_clock_breakdown` on too")
    recompute_fwd_factor: float = setting(
        0.0,
        "share of the forward that backward computes again (1.0 for full activation checkpointing)",
        low=0,
    )
    profile_step: int = setting(1, "the optimizer step to profile, counted from 1", low=1)
    module_depth: int = setting(-1, "the deepest level of modules in the summary; -1 is the innermost")
    top_modules: int = setting(1, "how many modules the summary names per level", low=1)
    detailed: bool = setting(True, "print the whole module tree, too")
    output_file: str | None = setting(None, "write the profile there instead of to stderr", kind="text")


@dataclass(frozen=True, slots=True)
class TensorboardConfig:
    """`tensorboard`: events for TensorBoard, if it is installed."""

    enabled: bool = setting(False, "write events for TensorBoard (rank 0)")
    output_path: str = setting("", "the directory; empty: where the script was started")
    job_name: str = setting("DeepSpeedJobName", "the directory below it")


@dataclass(frozen=True, slots=True)
class CsvMonitorConfig:
    """`csv_monitor`: one file per event name."""

    enabled: bool = setting(False, "append events to csv files, one for every name (rank 0)")
    output_path: str = setting("", "the directory; empty: where the script was started")
    job_name: str = setting("DeepSpeedJobName", "the directory below it")


@dataclass(frozen=True, slots=True)
class WandbConfig:
    """`wandb`: events for Weights & Biases, if it is installed."""

    enabled: bool = setting(False, "log events to Weights & Biases (rank 0)")
    group: str | None = setting(None, "the run's group", kind="text")
    team: str | None = setting(None, "the run's entity", kind="text")
    project: str = setting("deepspeed", "the run's project")


@dataclass(frozen=True, slots=True)
class ActivationCheckpointingConfig:
    """`activation_checkpointing`: how `dslaunch.engine.checkpointing.checkpoint` stores its inputs."""

    cpu_checkpointing: bool = setting(False, "keep the checkpoints' inputs in host memory until backward")
    profile: bool = setting(False, "say how long every checkpointed function takes, the first time and again")
