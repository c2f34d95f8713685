"""Reading a ds_config into an EngineConfig. Imports no torch; values and defaults are in `config_values`."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dslaunch.engine.config_deprecated import modernised
from dslaunch.engine.config_keys import TOP
from dslaunch.engine.config_observe import (
    ActivationCheckpointingConfig,
    CommsLoggerConfig,
    CsvMonitorConfig,
    FlopsProfilerConfig,
    TensorboardConfig,
    ThroughputConfig,
    WandbConfig,
)
from dslaunch.engine.config_offload import offload_sections
from dslaunch.engine.config_optimizer import optimizer_spec
from dslaunch.engine.config_precision import (
    autocast,
    check_communication,
    check_precision,
    compute_dtype,
    grad_accum_dtype,
)
from dslaunch.engine.config_read import Reading, Remark, as_mapping, read, without_effect
from dslaunch.engine.config_scheduler import scheduler_spec
from dslaunch.engine.config_source import ConfigInput, load_source
from dslaunch.engine.config_values import (
    AutocastConfig,
    BatchRequest,
    CheckpointConfig,
    DtypeName,
    EngineConfig,
    Fp16Config,
    LeafModules,
    OptimizerConfig,
    SchedulerConfig,
    Stage3Config,
    ZeroConfig,
)
from dslaunch.engine.errors import ConfigError

__all__ = [
    "BatchRequest",
    "DtypeName",
    "EngineConfig",
    "OptimizerConfig",
    "SchedulerConfig",
    "Survey",
    "ZeroConfig",
    "load_config",
    "parse_config",
    "survey",
]

STRICT_VARIABLE = "DSLAUNCH_STRICT_CONFIG"

STAGES = (0, 1, 2, 3)

_LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


@dataclass(frozen=True, slots=True)
class Survey:
    """A configuration and everything wrong with it; where something is wrong the default stands."""

    config: EngineConfig
    errors: tuple[ConfigError, ...]
    unknown: tuple[str, ...]  # paths that look like nothing known
    remarks: tuple[Remark, ...]  # keys without effect
    said: tuple[str, ...]  # lines about the text, old spellings and "auto"


def load_config(source: ConfigInput) -> EngineConfig:
    """Read a mapping, a path or base64 text; ConfigError on anything wrong or not supported.

    Unknown keys that look like no known one are a warning; an error if DSLAUNCH_STRICT_CONFIG is set.
    """
    loaded = load_source(source)
    return parse_config(loaded.raw, os.environ.get(STRICT_VARIABLE, "0") not in ("", "0"), loaded.notes)


def parse_config(
    raw: Mapping[str, object], strict: bool = False, notes: tuple[str, ...] = ()
) -> EngineConfig:
    """The config of a raw mapping, `notes` before its own; ConfigError on anything wrong or not supported."""
    found = survey(raw, notes)
    if found.errors:
        raise found.errors[0]
    if strict and found.unknown:
        raise ConfigError(
            f"unknown keys: {', '.join(found.unknown)}", f"remove them, or unset {STRICT_VARIABLE}"
        )
    return found.config


def survey(raw: Mapping[str, object], notes: tuple[str, ...] = ()) -> Survey:
    """Read all of a raw mapping, whatever is wrong with it."""
    old: list[str] = []
    try:
        raw, old = modernised(raw)
        early = None
    except ConfigError as error:
        early = error
    reading = read(raw, TOP)
    if early is not None:
        reading.errors.insert(0, early)
    reading.attempt(lambda: check_precision(reading), None)
    config = _assemble(reading)
    said, remarks = (*notes, *old, *reading.left_auto()), reading.remarks()
    config = replace(
        config,
        notes=(*said, *without_effect(remarks, warn=False)),
        warnings=(*without_effect(remarks, warn=True), *_unknown(reading.unknown)),
    )
    return Survey(config, tuple(reading.errors), tuple(reading.unknown), remarks, said)


def _unknown(paths: list[str]) -> tuple[str, ...]:
    if not paths:
        return ()
    return (f"unknown keys, ignored: {', '.join(paths)} ({STRICT_VARIABLE}=1 makes them errors)",)


def _assemble(reading: Reading) -> EngineConfig:
    dtype = compute_dtype(reading)
    accumulation: DtypeName = reading.attempt(lambda: grad_accum_dtype(reading, dtype), dtype)
    reading.attempt(lambda: check_communication(reading, accumulation), None)
    zero = reading.attempt(lambda: _zero(reading), ZeroConfig())
    optimizer = reading.attempt(lambda: _optimizer(reading), None)
    scheduler = reading.attempt(lambda: _scheduler(reading), None)
    flops_profiler = reading.record(FlopsProfilerConfig, "flops_profiler.")
    reading.values["wall_clock_breakdown"] = (
        reading.get("wall_clock_breakdown", bool, False) or flops_profiler.enabled
    )
    steps = reading.attempt(lambda: _steps_per_print(reading), None)
    reading.values.pop("steps_per_print", None)
    return reading.record(
        EngineConfig,
        "",
        batch=reading.record(BatchRequest, ""),
        zero=zero,
        optimizer=optimizer,
        scheduler=scheduler,
        dtype=dtype,
        grad_accum_dtype=accumulation,
        check_grad_overflow=reading.get("bf16.check_grad_overflow", bool, True),
        fp16=reading.record(Fp16Config, "fp16."),
        autocast=reading.attempt(lambda: autocast(reading), AutocastConfig()),
        checkpoint=reading.record(
            CheckpointConfig, "checkpoint.", asynchronous=reading.get("checkpoint.async", bool, False)
        ),
        steps_per_print=steps,
        log_level=reading.attempt(lambda: _log_level(reading), logging.INFO),
        throughput=reading.record(ThroughputConfig, "timers.throughput."),
        comms_logger=reading.record(CommsLoggerConfig, "comms_logger."),
        flops_profiler=flops_profiler,
        tensorboard=reading.record(TensorboardConfig, "tensorboard."),
        csv_monitor=reading.record(CsvMonitorConfig, "csv_monitor."),
        wandb=reading.record(WandbConfig, "wandb."),
        activation_checkpointing=reading.record(ActivationCheckpointingConfig, "activation_checkpointing."),
    )


def _zero(reading: Reading) -> ZeroConfig:
    at = "zero_optimization"
    stage = reading.get(f"{at}.stage", int, 0)
    if stage not in STAGES:
        raise ConfigError(
            f"{at}.stage: expects 0, 1, 2 or 3 but got {stage}", "write one of these", f"{at}.stage"
        )
    if stage < 3:
        only = (f"{at}.stage3_", f"{at}.leaf_module", f"{at}.zero_hpz", f"{at}.zero_quantized_weights")
        idle = [path for path in reading.values if path.startswith(only)]
        if idle:
            reading.no_effect["only ZeRO stage 3 reads it"] = idle
    offload_optimizer, offload_param = offload_sections(reading, stage)
    quantizes = f"{at}.zero_quantized_weights"
    if offload_param.is_on and reading.get(quantizes, bool, False):
        raise ConfigError(
            f"{quantizes} is not supported with offload_param",
            "keep one of them; zero_hpz_partition_size goes with both",
            quantizes,
        )
    return reading.record(
        ZeroConfig,
        f"{at}.",
        offload_optimizer=offload_optimizer,
        offload_param=offload_param,
        stage3=reading.record(Stage3Config, f"{at}.stage3_"),
        leaf_module=reading.record(LeafModules, f"{at}.leaf_module."),
    )


_LOW_MOMENTS = "bf16.bf16_optimizer_states"


def _optimizer(reading: Reading) -> OptimizerConfig | None:
    typed = _typed(reading, "optimizer")
    low = reading.get(_LOW_MOMENTS, bool, False)
    if typed is None:
        if low:
            reading.warn(_LOW_MOMENTS, "the script's optimizer says what its moments are kept in")
        return None
    config = OptimizerConfig(*typed)
    spec = optimizer_spec(config)
    if low and spec.rule != "adam":
        reading.warn(_LOW_MOMENTS, f"{spec.name} keeps its states in fp32")
    elif low:
        config = replace(config, params={"moment_dtype": "bf16", **config.params})
    return config


def _scheduler(reading: Reading) -> SchedulerConfig | None:
    typed = _typed(reading, "scheduler")
    if typed is None:
        return None
    config = SchedulerConfig(*typed)
    scheduler_spec(config)
    return config


def _typed(reading: Reading, name: str) -> tuple[str, Mapping[str, object]] | None:
    params = reading.values.get(f"{name}.params")
    kind = reading.values.get(f"{name}.type")
    if kind is None:
        if params is not None:
            raise ConfigError(
                f"{name}.params is given without {name}.type", f"write {name}.type", f"{name}.type"
            )
        return None
    return str(kind), as_mapping(f"{name}.params", params if params is not None else {})


def _steps_per_print(reading: Reading) -> int | None:
    steps = reading.get("steps_per_print", float, math.inf)
    if math.isinf(steps):
        return None
    if steps < 1 or not float(steps).is_integer():
        raise ConfigError(
            f"steps_per_print: expects a positive integer but got {steps:g}",
            "write e.g. 10",
            "steps_per_print",
        )
    return int(steps)


def _log_level(reading: Reading) -> int:
    level = reading.get("log_level", str, "info").lower()
    if level not in _LEVELS:
        raise ConfigError(
            f"log_level: expects one of {', '.join(_LEVELS)} but got {level!r}", "write info", "log_level"
        )
    return _LEVELS[level]
