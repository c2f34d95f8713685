"""Pipeline parallelism."""

from dslaunch.compat.unsupported import Missing

_missing = Missing(
    "runtime.pipe.module", "train with ZeRO stage 3, which spreads a model over ranks without stages"
)

PipelineModule = _missing.type("PipelineModule")
LayerSpec = _missing.type("LayerSpec")
TiedLayerSpec = _missing.type("TiedLayerSpec")
