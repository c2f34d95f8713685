"""`deepspeed.ops.op_builder`: which of DeepSpeed's kernels there is a stand-in for; none is built."""

from __future__ import annotations

from typing import NoReturn

from dslaunch.compat.unsupported import Missing

_MISSING = Missing("ops.op_builder", "take the optimizers of deepspeed.ops, which need no builder")

_OPTIMIZERS = {
    "CPUAdagradBuilder": "cpu_adagrad",
    "CPUAdamBuilder": "cpu_adam",
    "CPULionBuilder": "cpu_lion",
    "FusedAdamBuilder": "fused_adam",
    "FusedLambBuilder": "fused_lamb",
    "FusedLionBuilder": "fused_lion",
}
_OTHERS = {
    "AsyncIOBuilder": "async_io",
    "EvoformerAttnBuilder": "evoformer_attn",
    "FPQuantizerBuilder": "fp_quantizer",
    "GDSBuilder": "gds",
    "InferenceBuilder": "transformer_inference",
    "QuantizerBuilder": "quantizer",
    "RandomLTDBuilder": "random_ltd",
    "SpatialInferenceBuilder": "spatial_inference",
    "StochasticTransformerBuilder": "stochastic_transformer",
    "TransformerBuilder": "transformer",
    "UtilsBuilder": "utils",
}

COMPATIBLE_OPS = {
    **dict.fromkeys(_OPTIMIZERS.values(), True),
    **dict.fromkeys(_OTHERS.values(), False),
}
"""By the name of each operation: whether what DeepSpeed builds for it is there, without being built."""


class Builder:
    """One of DeepSpeed's builders: it can be asked, and builds nothing."""

    NAME: str

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether `deepspeed.ops` has what this would build."""
        return COMPATIBLE_OPS[self.NAME]

    def load(self, verbose: bool = False) -> NoReturn:
        """Raise NotImplementedError."""
        _MISSING.refuse(f"{type(self).__name__}.load")


def builder(name: str) -> type[Builder]:
    """The builder of that name."""
    op = {**_OPTIMIZERS, **_OTHERS}[name]
    return type(name, (Builder,), {"NAME": op, "__doc__": f"What DeepSpeed builds {op} with."})
