"""Pipeline parallelism."""

from dslaunch.compat.unsupported import Missing

_missing = Missing(
    "runtime.pipe.topology", "train with ZeRO stage 3, which spreads a model over ranks without stages"
)

PipeDataParallelTopology = _missing.type("PipeDataParallelTopology")
PipeModelDataParallelTopology = _missing.type("PipeModelDataParallelTopology")
PipelineParallelGrid = _missing.type("PipelineParallelGrid")
ProcessTopology = _missing.type("ProcessTopology")
