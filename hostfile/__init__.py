"""Text to Topology: hostfiles and the filters of the command line. Pure, no I/O."""

from dslaunch.hostfile.errors import FilterError, HostfileError, TopologyError
from dslaunch.hostfile.topology import Host, Topology

__all__ = ["FilterError", "Host", "HostfileError", "Topology", "TopologyError"]
