"""Pipeline parallelism."""

from dslaunch.compat.unsupported import Missing

_missing = Missing(
    "runtime.pipe.engine", "train with ZeRO stage 3, which spreads a model over ranks without stages"
)

PipelineEngine = _missing.type("PipelineEngine")
