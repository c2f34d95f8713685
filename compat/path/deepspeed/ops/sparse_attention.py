"""Sparse attention, which DeepSpeed itself has removed."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("ops.sparse_attention", "use torch's flex_attention")

SparseSelfAttention = _missing.type("SparseSelfAttention")
FixedSparsityConfig = _missing.type("FixedSparsityConfig")
SparsityConfig = _missing.type("SparsityConfig")
