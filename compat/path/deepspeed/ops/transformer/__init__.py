"""Fused transformer layers."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("ops.transformer", "use torch.nn.TransformerEncoderLayer or the model's own layers")

DeepSpeedTransformerConfig = _missing.type("DeepSpeedTransformerConfig")
DeepSpeedTransformerLayer = _missing.type("DeepSpeedTransformerLayer")
DeepSpeedInferenceConfig = _missing.type("DeepSpeedInferenceConfig")
DeepSpeedTransformerInference = _missing.type("DeepSpeedTransformerInference")
