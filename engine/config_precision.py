"""The keys about precision: fp16, bf16, torch_autocast, data_types, communication_data_type. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.engine.config_read import Reading
from dslaunch.engine.config_values import AutocastConfig, DtypeName
from dslaunch.engine.errors import ConfigError

_DTYPE_NAMES: Mapping[str, DtypeName] = {
    **dict.fromkeys(("fp32", "float32", "float"), "fp32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
}


def check_precision(reading: Reading) -> None:
    """ConfigError where fp16 and bf16 are both on."""
    fp16, bf16 = (reading.get(f"{name}.enabled", bool, False) for name in ("fp16", "bf16"))
    if fp16 and bf16:
        raise ConfigError(
            "bfloat16 and fp16 modes cannot be simultaneously enabled", "disable fp16", "fp16.enabled"
        )


def compute_dtype(reading: Reading) -> DtypeName:
    """What parameters are cast to."""
    if reading.get("fp16.enabled", bool, False):
        return "fp16"
    return "bf16" if reading.get("bf16.enabled", bool, False) else "fp32"


def grad_accum_dtype(reading: Reading, dtype: DtypeName) -> DtypeName:
    """The dtype of the gradient buffers, beside parameters of `dtype`; gradients travel in it, too.

    That is fp32 where the two are different 16-bit ones, or fp32 parameters are to have 16-bit gradients.
    """
    path = "data_types.grad_accum_dtype"
    named, travel = _dtype_name(reading, path), _dtype_name(reading, "communication_data_type")
    if named is not None and named not in (dtype, "fp32"):
        reading.warn(path, f"beside {dtype} parameters gradients are accumulated in fp32")
        return "fp32"
    return named or ("fp32" if travel == "fp32" else dtype)


def check_communication(reading: Reading, accumulation: DtypeName) -> None:
    """A warning unless gradients are to travel in their accumulation dtype, in which they do."""
    path = "communication_data_type"
    named = _dtype_name(reading, path)
    if named not in (None, accumulation):
        reading.warn(path, f"gradients travel in what they are accumulated in, {accumulation}")


def autocast(reading: Reading) -> AutocastConfig:
    """The section torch_autocast; ConfigError beside another precision."""
    found = reading.record(AutocastConfig, "torch_autocast.")
    if found.enabled and compute_dtype(reading) != "fp32":
        raise ConfigError(
            "torch_autocast is for fp32 parameters, but bf16 or fp16 is enabled too",
            "keep one of them",
            "torch_autocast.enabled",
        )
    return found


def _dtype_name(reading: Reading, path: str) -> DtypeName | None:
    text = reading.values.get(path)
    if text is None:
        return None
    if str(text).lower() not in _DTYPE_NAMES:
        raise ConfigError(f"{path}: expects fp32, bf16 or fp16 but got {text!r}", "write fp32 or bf16", path)
    return _DTYPE_NAMES[str(text).lower()]
