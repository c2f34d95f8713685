"""DeepSpeed's builders of kernels: here nothing is built on demand."""

from dslaunch.compat.builders import builder

AsyncIOBuilder = builder("AsyncIOBuilder")
CPUAdagradBuilder = builder("CPUAdagradBuilder")
CPUAdamBuilder = builder("CPUAdamBuilder")
CPULionBuilder = builder("CPULionBuilder")
EvoformerAttnBuilder = builder("EvoformerAttnBuilder")
FPQuantizerBuilder = builder("FPQuantizerBuilder")
FusedAdamBuilder = builder("FusedAdamBuilder")
FusedLambBuilder = builder("FusedLambBuilder")
FusedLionBuilder = builder("FusedLionBuilder")
GDSBuilder = builder("GDSBuilder")
InferenceBuilder = builder("InferenceBuilder")
QuantizerBuilder = builder("QuantizerBuilder")
RandomLTDBuilder = builder("RandomLTDBuilder")
SpatialInferenceBuilder = builder("SpatialInferenceBuilder")
StochasticTransformerBuilder = builder("StochasticTransformerBuilder")
TransformerBuilder = builder("TransformerBuilder")
UtilsBuilder = builder("UtilsBuilder")
