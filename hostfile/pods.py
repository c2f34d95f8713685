"""What a pod is told about its place in a job: torchrun's PET_ variables and Kubernetes' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dslaunch.hostfile.address import parse_name
from dslaunch.hostfile.errors import TopologyError
from dslaunch.hostfile.parse import MAX_SLOTS
from dslaunch.hostfile.variables import Variable, find_variable

_MAX_NODES = 65536
_HINT = "correct or unset it, or say it on the command line"
_TORCHRUN_WORDS = ("auto", "gpu", "cpu", "xpu")


@dataclass(frozen=True, slots=True)
class Pod:
    """One node of a job whose nodes were started by someone else. None is what nobody said."""

    num_nodes: int | None = None
    node_rank: int | None = None
    num_slots: int | None = None
    master_addr: str | None = None
    master_port: int | None = None


def find_pod(environ: Mapping[str, str]) -> Pod | None:
    """This pod's place; None where no variable speaks of one.

    `PET_NNODES`, `PET_NODE_RANK`, `PET_NPROC_PER_NODE`, `PET_MASTER_ADDR`, `PET_MASTER_PORT` are torchrun's,
    set by Kubeflow. Where they are silent, `NODE_RANK`, then the `JOB_COMPLETION_INDEX` of an indexed Job
    tell the rank, and beside any of these `MASTER_ADDR` and `MASTER_PORT` the master.
    Raises TopologyError, naming the variable, for a bad value.
    """
    num_nodes = find_variable(environ, "PET_NNODES")
    node_rank = find_variable(environ, "PET_NODE_RANK", "NODE_RANK", "JOB_COMPLETION_INDEX")
    num_slots = find_variable(environ, "PET_NPROC_PER_NODE")
    if not (
        num_nodes or node_rank or num_slots or find_variable(environ, "PET_MASTER_ADDR", "PET_MASTER_PORT")
    ):
        return None
    master_addr = find_variable(environ, "PET_MASTER_ADDR", "MASTER_ADDR")
    master_port = find_variable(environ, "PET_MASTER_PORT", "MASTER_PORT")
    pod = Pod(
        num_nodes=None if num_nodes is None else _num_nodes(num_nodes),
        node_rank=None if node_rank is None else node_rank.number(0, _MAX_NODES - 1, _HINT),
        num_slots=None if num_slots is None else _num_slots(num_slots),
        master_addr=None if master_addr is None else _address(master_addr),
        master_port=None if master_port is None else master_port.number(1, 65535, _HINT),
    )
    if node_rank and pod.node_rank is not None and pod.num_nodes and pod.node_rank >= pod.num_nodes:
        raise node_rank.refused(
            f"there are {pod.num_nodes} nodes (PET_NNODES), their ranks are 0 to {pod.num_nodes - 1}", _HINT
        )
    return pod


def _num_nodes(variable: Variable) -> int:
    """`2`, or torchrun's `2:2`."""
    low, colon, high = variable.value.strip().partition(":")
    if colon and low != high:
        raise variable.refused(
            "a range of nodes, which only torchrun's elastic mode can use", "set PET_NNODES to one number"
        )
    return Variable(variable.name, low).number(1, _MAX_NODES, _HINT)


def _num_slots(variable: Variable) -> int | None:
    """None for torchrun's words for "as many as this pod has"."""
    if variable.value.strip().lower() in _TORCHRUN_WORDS:
        return None
    return variable.number(1, MAX_SLOTS, _HINT)


def _address(variable: Variable) -> str:
    try:
        return parse_name(variable.value.strip())
    except TopologyError as error:
        raise variable.refused(error.what, _HINT) from None
