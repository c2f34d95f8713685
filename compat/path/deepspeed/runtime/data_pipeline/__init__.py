"""Curriculum learning."""

from dslaunch.compat.unsupported import Missing

_missing = Missing("runtime.data_pipeline", "sort the data in the script")

DeepSpeedDataSampler = _missing.type("DeepSpeedDataSampler")
