"""Hosts that are real enough to be logged in to: those that the tests in tests/cluster build."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "cluster"))

from netcluster import Cluster, ClusterError, why_impossible

__all__ = ["Cluster", "ClusterError", "cluster_prefix", "pdsh_environ", "why_impossible"]


def cluster_prefix(number: int = 0) -> str:
    """A name for one of this process's clusters."""
    return f"b{number}p{os.getpid() % 100000}"


def pdsh_environ(cluster: Cluster) -> dict[str, str]:
    """What makes plain pdsh reach the cluster's hosts by their names."""
    return {"PDSH_RCMD_TYPE": "ssh", "PDSH_SSH_ARGS_APPEND": f"-F {cluster.ssh_config}"}
