"""Inference."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("inference.engine", "use model.generate of Transformers, or vLLM to serve")

InferenceEngine = _missing.type("InferenceEngine")
init_inference = _missing.function("init_inference")
default_inference_config = _missing.function("default_inference_config")
