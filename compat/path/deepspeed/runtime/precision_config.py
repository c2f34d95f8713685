"""The sections bf16 and fp16 as records."""

from collections.abc import Mapping

from dslaunch.compat.config import Bf16Section as DeepSpeedBF16Config
from dslaunch.engine.config_values import Fp16Config as DeepSpeedFP16Config

FP16, BFLOAT16, BFLOAT16_OLD = "fp16", "bf16", "bfloat16"


def get_bfloat16_config(param_dict: Mapping[str, Mapping[str, object]]) -> DeepSpeedBF16Config:
    """The section bf16 of a configuration, under either of its names."""
    section = param_dict.get(BFLOAT16, param_dict.get(BFLOAT16_OLD, {}))
    return DeepSpeedBF16Config(bool(section.get("enabled", False)))


__all__ = ["DeepSpeedBF16Config", "DeepSpeedFP16Config", "get_bfloat16_config"]
