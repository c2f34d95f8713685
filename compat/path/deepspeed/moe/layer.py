"""Mixture of experts."""

from dslaunch.compat.unsupported import Missing

_missing = Missing(
    "moe.layer", "train the model's own experts with ZeRO stage 3 and zero.set_z3_leaf_modules"
)

MoE = _missing.type("MoE")
