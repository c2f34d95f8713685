"""Elastic batch sizes, which DeepSpeed itself has removed."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("elasticity", "use dslaunch --elastic_training")

compute_elastic_config = _missing.function("compute_elastic_config")
