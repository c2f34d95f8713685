"""Kernels put into a model's layers."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("module_inject", "use model.generate of Transformers, or vLLM to serve")

DeepSpeedPolicy = _missing.type("DeepSpeedPolicy")
replace_transformer_layer = _missing.function("replace_transformer_layer")
revert_transformer_layer = _missing.function("revert_transformer_layer")
