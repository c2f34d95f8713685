"""`DeepSpeedZeroConfig`: the section zero_optimization as an object with DeepSpeed's names."""

from __future__ import annotations

from collections.abc import Mapping

from dslaunch.engine.config import parse_config
from dslaunch.engine.config_answers import NoEffect
from dslaunch.engine.config_keys import ZERO
from dslaunch.engine.config_values import OffloadOptimizerConfig, OffloadParamConfig, ZeroConfig

_OFFLOADS = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}


class DeepSpeedZeroConfig:
    """Made of the section's keys; ConfigError, a ValueError, as `initialize` raises it.

    Every key is an attribute, the `stage3_` ones without their prefix: as the engine reads it, else as it is
    written, else with DeepSpeed's default. `offload_optimizer` and `offload_param` are None unless given.
    """

    def __init__(self, **section: object) -> None:
        self.settings: ZeroConfig = parse_config({"zero_optimization": section}).zero
        self._section = {_without_prefix(key): value for key, value in section.items()}

    def __getattr__(self, name: str) -> object:
        if name.startswith("_") or name == "settings":
            raise AttributeError(name)
        if name in _OFFLOADS and not (
            self._section.get(name) is not None or self._section.get(_OFFLOADS[name])
        ):
            return None
        for settings in (self.settings, self.settings.stage3):
            if hasattr(settings, name):
                return getattr(settings, name)
        answer = ZERO.get(f"stage3_{name}") or ZERO.get(name)
        if isinstance(answer, NoEffect) and answer.quiet:
            return self._section.get(name, answer.quiet[0])
        raise AttributeError(f"zero_optimization has no key {name}")


def _without_prefix(key: str) -> str:
    return key.removeprefix("stage3_")


def zero_config(raw: Mapping[str, object]) -> DeepSpeedZeroConfig:
    """The section of a whole configuration, where `zero_optimization: true` means stage 1."""
    section = raw.get("zero_optimization", {})
    if isinstance(section, Mapping):
        return DeepSpeedZeroConfig(**section)
    return DeepSpeedZeroConfig(stage=1 if section else 0)


__all__ = ["DeepSpeedZeroConfig", "OffloadOptimizerConfig", "OffloadParamConfig", "zero_config"]
