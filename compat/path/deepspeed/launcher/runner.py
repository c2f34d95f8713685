"""What scripts take from DeepSpeed's launcher; `python -m deepspeed.launcher.runner` is dslaunch."""

from dslaunch.launcher.deepspeed_names import (
    encode_world_info,
    fetch_hostfile,
    main,
    parse_inclusion_exclusion,
    parse_resource_filter,
)
from dslaunch.launcher.deepspeed_names import parse_hostfile_lines as _parse_hostfile

DLTS_HOSTFILE = "/job/hostfile"
DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"

__all__ = [
    "DEEPSPEED_ENVIRONMENT_NAME",
    "DLTS_HOSTFILE",
    "_parse_hostfile",
    "encode_world_info",
    "fetch_hostfile",
    "main",
    "parse_inclusion_exclusion",
    "parse_resource_filter",
]

if __name__ == "__main__":
    main()
