"""Sequence parallelism."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("sequence.layer", "shorten the sequences, or checkpoint activations")

DistributedAttention = _missing.type("DistributedAttention")
