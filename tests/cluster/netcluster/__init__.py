"""A multi-host test cluster on one machine, of network namespaces with sshd. Needs root.

By hand: `PYTHONPATH=tests/cluster python -m netcluster --help`.
"""

from netcluster.capability import why_impossible
from netcluster.cluster import Cluster, HostProcess, clusters
from netcluster.errors import ClusterError
from netcluster.process import Process, wait_until

__all__ = ["Cluster", "ClusterError", "HostProcess", "Process", "clusters", "wait_until", "why_impossible"]
