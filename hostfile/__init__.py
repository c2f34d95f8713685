"""Text to Topology: hostfiles, what schedulers say, and the filters of the command line. Pure, no I/O."""

from dslaunch.hostfile.allocation import Allocation, find_allocation
from dslaunch.hostfile.errors import FilterError, HostfileError, TopologyError
from dslaunch.hostfile.filters import Selection, select
from dslaunch.hostfile.parse import parse_hostfile, parse_hostfile_bytes
from dslaunch.hostfile.pods import Pod, find_pod
from dslaunch.hostfile.ranges import expand_name_list, fold_names
from dslaunch.hostfile.topology import Host, Topology

__all__ = [
    "Allocation",
    "FilterError",
    "Host",
    "HostfileError",
    "Pod",
    "Selection",
    "Topology",
    "TopologyError",
    "expand_name_list",
    "find_allocation",
    "find_pod",
    "fold_names",
    "parse_hostfile",
    "parse_hostfile_bytes",
    "select",
]
