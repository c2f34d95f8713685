"""The stages of ZeRO, and the section of the configuration."""

from dslaunch.compat.zero_names import ZeroStageEnum
from dslaunch.engine.config_values import ZeroConfig as DeepSpeedZeroConfig

ZERO_OPTIMIZATION = "zero_optimization"

__all__ = ["ZERO_OPTIMIZATION", "DeepSpeedZeroConfig", "ZeroStageEnum"]
