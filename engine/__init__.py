"""A ZeRO training engine with DeepSpeed's programming interface: `import dslaunch.engine as deepspeed`."""

from dslaunch.engine.distributed import init_distributed
from dslaunch.engine.engine import Engine
from dslaunch.engine.errors import CheckpointError, ConfigError, EngineError
from dslaunch.engine.initialize import add_config_arguments, initialize

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Engine",
    "EngineError",
    "add_config_arguments",
    "init_distributed",
    "initialize",
]
