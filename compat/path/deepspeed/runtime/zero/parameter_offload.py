"""Parameters off the training device."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("runtime.zero.parameter_offload", "use ZeRO stage 3, which shards them")

DeepSpeedZeRoOffload = _missing.type("DeepSpeedZeRoOffload")
