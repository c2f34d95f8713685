"""DeepSpeed's builders of kernels: here nothing is built on demand."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("ops.op_builder", "take the optimizers of deepspeed.ops, which need no builder")

AsyncIOBuilder = _missing.type("AsyncIOBuilder")
CPUAdagradBuilder = _missing.type("CPUAdagradBuilder")
CPUAdamBuilder = _missing.type("CPUAdamBuilder")
CPULionBuilder = _missing.type("CPULionBuilder")
FusedAdamBuilder = _missing.type("FusedAdamBuilder")
FusedLambBuilder = _missing.type("FusedLambBuilder")
FusedLionBuilder = _missing.type("FusedLionBuilder")
InferenceBuilder = _missing.type("InferenceBuilder")
TransformerBuilder = _missing.type("TransformerBuilder")
UtilsBuilder = _missing.type("UtilsBuilder")
