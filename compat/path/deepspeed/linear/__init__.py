"""Linear layers with LoRA and quantization inside."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("linear", "use PEFT")

OptimizedLinear = _missing.type("OptimizedLinear")
LoRAConfig = _missing.type("LoRAConfig")
QuantizationConfig = _missing.type("QuantizationConfig")
