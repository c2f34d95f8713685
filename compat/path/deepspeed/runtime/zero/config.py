"""The stages of ZeRO, and the section of the configuration."""

from dslaunch.compat.zero_config import DeepSpeedZeroConfig
from dslaunch.compat.zero_config import OffloadOptimizerConfig as DeepSpeedZeroOffloadOptimizerConfig
from dslaunch.compat.zero_config import OffloadParamConfig as DeepSpeedZeroOffloadParamConfig
from dslaunch.compat.zero_names import ZeroStageEnum

ZERO_OPTIMIZATION = "zero_optimization"

__all__ = [
    "ZERO_OPTIMIZATION",
    "DeepSpeedZeroConfig",
    "DeepSpeedZeroOffloadOptimizerConfig",
    "DeepSpeedZeroOffloadParamConfig",
    "ZeroStageEnum",
]
