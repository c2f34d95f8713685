"""The offload sections of zero_optimization: what may be offloaded at which stage. No torch."""

from __future__ import annotations

from dataclasses import replace

from dslaunch.engine.config_read import Reading
from dslaunch.engine.config_values import OffloadOptimizerConfig, OffloadParamConfig
from dslaunch.engine.errors import ConfigError

_AT = "zero_optimization"


def offload_sections(reading: Reading, stage: int) -> tuple[OffloadOptimizerConfig, OffloadParamConfig]:
    """Both sections; ConfigError on what is not supported. Below stage 3 offload_param has no effect."""
    for section in ("offload_optimizer", "offload_param"):
        device = f"{_AT}.{section}.device"
        reading.values[device] = reading.get(device, str, "none").lower()
        if reading.values[device] == "nvme":
            raise ConfigError(
                f"{device}: 'nvme' is not supported: every step would move 24 bytes a parameter through the "
                "disk, 4 s for a billion parameters on a fast one",
                "write cpu, and share the states among more ranks where a host's memory is short",
                device,
            )
    optimizer = reading.record(OffloadOptimizerConfig, f"{_AT}.offload_optimizer.")
    param = reading.record(OffloadParamConfig, f"{_AT}.offload_param.")
    if optimizer.ratio > 1:
        ratio = f"{_AT}.offload_optimizer.ratio"
        raise ConfigError(f"{ratio}: expects at most 1 but got {optimizer.ratio:g}", "write 1", ratio)
    if optimizer.is_on and stage == 0:
        raise ConfigError(
            f"{_AT}.offload_optimizer needs ZeRO stage 1 or higher but got {stage}",
            "write stage 1",
            f"{_AT}.offload_optimizer",
        )
    if param.is_on and stage < 3:
        reading.no_effect.setdefault("only ZeRO stage 3 reads it", []).append(f"{_AT}.offload_param")
        param = replace(param, device="none")
    if param.is_on and optimizer.is_on and optimizer.ratio < 1:
        raise ConfigError(
            f"{_AT}.offload_optimizer.ratio: with offload_param the host steps everything, but got "
            f"{optimizer.ratio:g}",
            "write 1, or remove offload_param",
            f"{_AT}.offload_optimizer.ratio",
        )
    return optimizer, param
