"""Tensor parallelism."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("runtime.tensor_parallel", "train with ZeRO stage 3")

TpTrainingManager = _missing.type("TpTrainingManager")
tp_model_init = _missing.function("tp_model_init")
