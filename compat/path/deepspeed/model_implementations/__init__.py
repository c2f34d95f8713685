"""Models rebuilt for inference."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("model_implementations", "use model.generate of Transformers, or vLLM to serve")

DeepSpeedTransformerInference = _missing.type("DeepSpeedTransformerInference")
DeepSpeedInferenceConfig = _missing.type("DeepSpeedInferenceConfig")
