"""The names by which DeepSpeed spells the parameters of its schedules."""

from __future__ import annotations

from dslaunch.engine.config_scheduler import SCHEDULE_PARAMS

PARAMETER_NAMES = {
    key.upper(): key for params in SCHEDULE_PARAMS.values() for key in params if key != "last_batch_iteration"
}
"""`WARMUP_NUM_STEPS`: `warmup_num_steps`, and so on."""
