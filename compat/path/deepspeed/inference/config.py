"""Inference."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("inference.config", "use model.generate of Transformers, or vLLM to serve")

DeepSpeedInferenceConfig = _missing.type("DeepSpeedInferenceConfig")
DeepSpeedTPConfig = _missing.type("DeepSpeedTPConfig")
