"""Cores of ranks: dslaunch --bind_cores_to_rank."""

from dslaunch.compat.unsupported import Missing
from dslaunch.launcher.agent.binding import parse_core_list

_missing = Missing("utils.numa", "start the script with dslaunch --bind_cores_to_rank")

get_numactl_cmd = _missing.function("get_numactl_cmd")


def parse_range_list(range_str: str) -> list[int]:
    """The cores of `0,2-4`; ValueError unless they ascend."""
    return list(parse_core_list(range_str))
