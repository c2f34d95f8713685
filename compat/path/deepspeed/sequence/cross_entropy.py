"""Sequence parallelism."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("sequence.cross_entropy", "shorten the sequences, or checkpoint activations")

vocab_sequence_parallel_cross_entropy = _missing.function("vocab_sequence_parallel_cross_entropy")
