"""Sequence parallelism."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("runtime.sequence_parallel.ulysses_sp", "shorten the sequences, or checkpoint activations")

UlyssesSPAttentionHF = _missing.type("UlyssesSPAttentionHF")
UlyssesSPDataLoaderAdapter = _missing.type("UlyssesSPDataLoaderAdapter")
SequenceTiledCompute = _missing.type("SequenceTiledCompute")
TiledMLP = _missing.type("TiledMLP")
