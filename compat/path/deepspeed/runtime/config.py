"""The configuration, read and checked."""

from dslaunch.compat.config import DeepSpeedConfig
from dslaunch.engine.errors import ConfigError as DeepSpeedConfigError

ADAM_OPTIMIZER, ADAMW_OPTIMIZER, ADAGRAD_OPTIMIZER = "adam", "adamw", "adagrad"
LAMB_OPTIMIZER, LION_OPTIMIZER, MUON_OPTIMIZER = "lamb", "lion", "muon"

__all__ = ["DeepSpeedConfig", "DeepSpeedConfigError"]
