"""Where states can be put."""

from dslaunch.compat.zero_config import OffloadOptimizerConfig as DeepSpeedZeroOffloadOptimizerConfig
from dslaunch.compat.zero_config import OffloadParamConfig as DeepSpeedZeroOffloadParamConfig
from dslaunch.compat.zero_names import OffloadDeviceEnum, OffloadStateTypeEnum

__all__ = [
    "DeepSpeedZeroOffloadOptimizerConfig",
    "DeepSpeedZeroOffloadParamConfig",
    "OffloadDeviceEnum",
    "OffloadStateTypeEnum",
]
