"""The configuration as frozen values. Every default stands here, once. Imports no torch."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from dslaunch.engine.config_keys import TOP
from dslaunch.engine.config_read import Reading, as_mapping, read
from dslaunch.engine.config_source import ConfigInput, load_source
from dslaunch.engine.errors import ConfigError

DtypeName = Literal["fp32", "bf16"]

_DTYPE_NAMES: Mapping[str, DtypeName | Literal["fp16"]] = {
    **dict.fromkeys(("fp32", "float32", "float"), "fp32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
}
_LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The batch numbers as given; see `batch.resolve_batch`."""

    train_batch_size: int | None = None
    train_micro_batch_size_per_gpu: int | None = None
    gradient_accumulation_steps: int | None = None


@dataclass(frozen=True, slots=True)
class ZeroConfig:
    """How optimizer state is sharded, and how large a bucket may grow (in elements)."""

    stage: int = 0
    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool = True


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """`optimizer.type` and `optimizer.params`, unread."""

    type: str
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """`scheduler.type` and `scheduler.params`, unread."""

    type: str
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All of a ds_config that this engine acts on."""

    batch: BatchRequest = BatchRequest()
    zero: ZeroConfig = ZeroConfig()
    optimizer: OptimizerConfig | None = None
    scheduler: SchedulerConfig | None = None
    dtype: DtypeName = "fp32"
    grad_accum_dtype: DtypeName = "fp32"  # of the gradient buffers; follows dtype unless set
    check_grad_overflow: bool = True
    gradient_clipping: float = 1.0  # largest global L2 norm; 0 switches clipping off
    steps_per_print: int | None = None
    dataloader_drop_last: bool = False
    log_level: int = logging.INFO
    notes: tuple[str, ...] = ()  # keys accepted without effect, and why


def load_config(source: ConfigInput) -> EngineConfig:
    """Read a mapping, a path or base64 text; ConfigError on anything wrong or not supported."""
    return parse_config(load_source(source))


def parse_config(raw: Mapping[str, object]) -> EngineConfig:
    """The config of a raw mapping; ConfigError on anything wrong or not supported."""
    reading = read(_without_bool_zero(_checked_precision(raw)), TOP)
    dtype = _dtype(reading)
    grad_accum_dtype = _grad_accum_dtype(reading, dtype)
    _check_communication(reading, grad_accum_dtype)
    return EngineConfig(
        batch=BatchRequest(
            *(cast("int | None", reading.values.get(name)) for name in BatchRequest.__dataclass_fields__)
        ),
        zero=_zero(reading),
        optimizer=_optimizer(reading),
        scheduler=_scheduler(reading),
        dtype=dtype,
        grad_accum_dtype=grad_accum_dtype,
        check_grad_overflow=reading.get("bf16.check_grad_overflow", bool, True),
        gradient_clipping=_gradient_clipping(reading),
        steps_per_print=_steps_per_print(reading),
        dataloader_drop_last=reading.get("dataloader_drop_last", bool, False),
        log_level=_log_level(reading),
        notes=reading.notes(),
    )


def _checked_precision(raw: Mapping[str, object]) -> Mapping[str, object]:
    """`bfloat16` under its newer name; fp16 is refused, with DeepSpeed's sentence if both are on."""
    if "bfloat16" in raw:
        if "bf16" in raw:
            raise ConfigError("bf16 and bfloat16 are the same section, both are given", "keep bf16")
        raw = {("bf16" if key == "bfloat16" else key): value for key, value in raw.items()}
    on = [
        name
        for name in ("fp16", "bf16")
        if isinstance(section := raw.get(name), Mapping) and section.get("enabled") is True
    ]
    if len(on) == 2:
        raise ConfigError("bfloat16 and fp16 modes cannot be simultaneously enabled", "disable fp16")
    if on == ["fp16"]:
        raise ConfigError("fp16 is not supported yet; use bf16", 'write "bf16": {"enabled": true}')
    return raw


def _without_bool_zero(raw: Mapping[str, object]) -> Mapping[str, object]:
    """`zero_optimization: true` is DeepSpeed's old spelling of stage 1."""
    zero = raw.get("zero_optimization")
    return {**raw, "zero_optimization": {"stage": int(zero)}} if isinstance(zero, bool) else raw


def _zero(reading: Reading) -> ZeroConfig:
    at = "zero_optimization"
    default = ZeroConfig()
    stage = reading.get(f"{at}.stage", int, default.stage)
    if stage not in (0, 1, 2, 3):
        raise ConfigError(f"{at}.stage: expects 0, 1, 2 or 3 but got {stage}", "write 0 or 1")
    if stage > 1:
        raise ConfigError(
            f"{at}.stage: ZeRO stage {stage} is not supported yet",
            "use stage 1: the same training, with gradients (and parameters) kept whole on every rank",
        )
    bucket = reading.get(f"{at}.reduce_bucket_size", int, default.reduce_bucket_size)
    if bucket < 1:
        raise ConfigError(f"{at}.reduce_bucket_size: expects at least 1 but got {bucket}", "write e.g. 5e8")
    return ZeroConfig(stage, bucket, reading.get(f"{at}.overlap_comm", bool, default.overlap_comm))


def _optimizer(reading: Reading) -> OptimizerConfig | None:
    typed = _typed(reading, "optimizer")
    return None if typed is None else OptimizerConfig(*typed)


def _scheduler(reading: Reading) -> SchedulerConfig | None:
    typed = _typed(reading, "scheduler")
    return None if typed is None else SchedulerConfig(*typed)


def _typed(reading: Reading, name: str) -> tuple[str, Mapping[str, object]] | None:
    params = reading.values.get(f"{name}.params")
    kind = reading.values.get(f"{name}.type")
    if kind is None:
        if params is not None:
            raise ConfigError(f"{name}.params is given without {name}.type", f"write {name}.type")
        return None
    return str(kind), as_mapping(f"{name}.params", params if params is not None else {})


def _dtype(reading: Reading) -> DtypeName:
    return "bf16" if reading.get("bf16.enabled", bool, False) else "fp32"


def _grad_accum_dtype(reading: Reading, dtype: DtypeName) -> DtypeName:
    named = _dtype_name(reading, "data_types.grad_accum_dtype")
    if named is None:
        return dtype
    if named == "fp16" or (named, dtype) == ("bf16", "fp32"):
        raise ConfigError(
            f"data_types.grad_accum_dtype: {named} is not supported with {dtype} parameters", "write fp32"
        )
    return named


def _check_communication(reading: Reading, grad_accum_dtype: DtypeName) -> None:
    named = _dtype_name(reading, "communication_data_type")
    if named not in (None, grad_accum_dtype):
        raise ConfigError(
            f"communication_data_type: {named} is refused: gradients travel in their accumulation dtype",
            f"remove it ({grad_accum_dtype} is used), or set data_types.grad_accum_dtype",
        )


def _dtype_name(reading: Reading, path: str) -> DtypeName | Literal["fp16"] | None:
    text = reading.values.get(path)
    if text is None:
        return None
    if str(text).lower() not in _DTYPE_NAMES:
        raise ConfigError(f"{path}: expects fp32, bf16 or fp16 but got {text!r}", "write fp32 or bf16")
    return _DTYPE_NAMES[str(text).lower()]


def _gradient_clipping(reading: Reading) -> float:
    clipping = float(reading.get("gradient_clipping", float, 1.0))
    if not (clipping >= 0 and math.isfinite(clipping)):
        raise ConfigError(
            f"gradient_clipping: expects a norm of at least 0 but got {clipping}", "0 switches it off"
        )
    return clipping


def _steps_per_print(reading: Reading) -> int | None:
    steps = reading.get("steps_per_print", float, math.inf)
    if math.isinf(steps):
        return None
    if steps < 1 or not float(steps).is_integer():
        raise ConfigError(f"steps_per_print: expects a positive integer but got {steps!r}", "write e.g. 10")
    return int(steps)


def _log_level(reading: Reading) -> int:
    level = reading.get("log_level", str, "info").lower()
    if level not in _LEVELS:
        raise ConfigError(f"log_level: expects one of {', '.join(_LEVELS)} but got {level!r}", "write info")
    return _LEVELS[level]
