"""The autotuner."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("autotuning", "run dslaunchctl config to see what a config takes")

Autotuner = _missing.type("Autotuner")
