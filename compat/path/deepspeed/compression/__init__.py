"""Compression, which DeepSpeed itself has removed."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("compression", "use torch.ao")

init_compression = _missing.function("init_compression")
redundancy_clean = _missing.function("redundancy_clean")
