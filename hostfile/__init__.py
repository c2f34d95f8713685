"""Text to Topology: hostfiles and the filters of the command line. Pure, no I/O."""

from dslaunch.hostfile.errors import FilterError, HostfileError, TopologyError
from dslaunch.hostfile.filters import Selection, select
from dslaunch.hostfile.parse import parse_hostfile, parse_hostfile_bytes
from dslaunch.hostfile.topology import Host, Topology

__all__ = [
    "FilterError",
    "Host",
    "HostfileError",
    "Selection",
    "Topology",
    "TopologyError",
    "parse_hostfile",
    "parse_hostfile_bytes",
    "select",
]
