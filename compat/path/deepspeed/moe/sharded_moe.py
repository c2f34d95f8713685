"""Mixture of experts."""

from dslaunch.compat.unsupported import Missing

_missing = Missing(
    "moe.sharded_moe", "train the model's own experts with ZeRO stage 3 and zero.set_z3_leaf_modules"
)

MOELayer = _missing.type("MOELayer")
TopKGate = _missing.type("TopKGate")
