"""A ZeRO training engine with DeepSpeed's programming interface: `import dslaunch.engine as deepspeed`.

Names are looked up at first use, so that what needs no torch (the configuration, its linter) imports none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dslaunch.engine import checkpointing as checkpointing
    from dslaunch.engine import comm as comm
    from dslaunch.engine import zero as zero
    from dslaunch.engine.distributed import init_distributed
    from dslaunch.engine.engine import Engine
    from dslaunch.engine.errors import CheckpointError, ConfigError, EngineError
    from dslaunch.engine.initialize import add_config_arguments, initialize
    from dslaunch.engine.lr_arguments import add_tuning_arguments

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Engine",
    "EngineError",
    "add_config_arguments",
    "add_tuning_arguments",
    "init_distributed",
    "initialize",
]

_HOMES = {
    "CheckpointError": "errors",
    "ConfigError": "errors",
    "Engine": "engine",
    "EngineError": "errors",
    "add_config_arguments": "initialize",
    "add_tuning_arguments": "lr_arguments",
    "init_distributed": "distributed",
}
_MODULES = ("checkpointing", "comm", "zero")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


class _Package(ModuleType):
    """`initialize` is the function, though its module has that name and the import system sets it here."""

    @property
    def initialize(self) -> Callable[..., object]:
        return import_module(f"{__name__}.initialize").initialize  # type: ignore[no-any-return]

    @initialize.setter
    def initialize(self, _: object) -> None:
        pass


sys.modules[__name__].__class__ = _Package

if os.environ.get("RANK"):
    from dslaunch.engine.ops import ahead

    ahead.start(os.environ)
