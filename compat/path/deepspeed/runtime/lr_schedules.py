"""Learning-rate schedules."""

from dslaunch.compat.schedules import PARAMETER_NAMES
from dslaunch.engine.lr_arguments import add_tuning_arguments
from dslaunch.engine.lr_schedules import (
    VALID_LR_SCHEDULES,
    LRRangeTest,
    OneCycle,
    WarmupCosineLR,
    WarmupDecayLR,
    WarmupLR,
)

LR_SCHEDULE = "lr_schedule"
globals().update(PARAMETER_NAMES)  # WARMUP_NUM_STEPS = "warmup_num_steps", and so on
WARMUP_LOG_RATE, WARMUP_LINEAR_RATE = "log", "linear"
LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR = VALID_LR_SCHEDULES

__all__ = [
    "VALID_LR_SCHEDULES",
    "LRRangeTest",
    "OneCycle",
    "WarmupCosineLR",
    "WarmupDecayLR",
    "WarmupLR",
    "add_tuning_arguments",
]
