"""One engine for training and generating."""

from dslaunch.compat.unsupported import Missing

_missing = Missing(
    "runtime.hybrid_engine", "generate with the engine's module; stage 3 gathers what it needs"
)

DeepSpeedHybridEngine = _missing.type("DeepSpeedHybridEngine")
