"""Whether a cluster of network namespaces can be built on this machine."""

from __future__ import annotations

import functools
import os
import sys

from netcluster.command import TOOLS, ip_batch, run, tool
from netcluster.errors import ClusterError


@functools.cache
def why_impossible() -> str | None:
    """The reason why `Cluster.up` cannot work here, for a skipped test to show; None where it can.

    It tries: a namespace with a bridge and a veth pair is made and removed again.
    """
    if sys.platform != "linux":
        return f"network namespaces are Linux's; this is {sys.platform}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"probe-{os.getpid()}"
    try:
        for name in TOOLS:
            tool(name)
        run(
            [tool("unshare"), "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--mount-proc", "true"]
        )
        ip_batch([f"netns add {probe}"])
        try:
            ip_batch(["link add br0 type bridge", "link add probe0 type veth peer name probe1"], netns=probe)
        finally:
            run([tool("ip"), "netns", "del", probe], check=False)
    except ClusterError as error:
        return str(error)
    return None
