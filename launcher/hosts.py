"""Which hosts and slots a launch is about: a hostfile, a job file, an allocation, or this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dslaunch.hostfile import Host, Topology, find_allocation, parse_hostfile, parse_hostfile_bytes
from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.machine import Machine
from dslaunch.launcher.request import LaunchRequest

DEFAULT_HOSTFILE = Path("/job/hostfile")
LOCAL_HOST = "localhost"
BY_HAND = "by hand"
"""The origin of hosts that nobody has named: each is started by hand."""


@dataclass(frozen=True, slots=True)
class Found:
    """Hosts before they are filtered.

    `origin` says where they were found, for people. `scheduler` is the one that gave them, "" if none did.
    `is_here` is true where nobody named a host. `device_kind` is a key of ACCELERATORS, or "slot" where
    only the hosts know theirs; `device_names` are this machine's names of its slots that are no numbers.
    """

    topology: Topology
    origin: str
    scheduler: str = ""
    is_here: bool = False
    device_kind: str = "slot"
    device_names: Mapping[int, str] = field(default_factory=dict)


def find_hosts(request: LaunchRequest, machine: Machine) -> Found:
    """Named hosts, else /job/hostfile, else the scheduler's, else this machine's devices.

    Raises UsageError or TopologyError.
    """
    if request.hosts:
        return Found(parse_hostfile("\n".join(request.hosts), "hosts of the job file"), "job file")
    named = _read_hostfile(request, machine)
    if named is not None:
        return named
    if not is_by_hand(request):
        allocation = find_allocation(machine.environ, lambda path: Path(path).read_text())
        if allocation is not None and not _is_this_machine(allocation.topology, machine):
            return Found(allocation.topology, f"{allocation.scheduler} allocation", allocation.scheduler)
    return _this_machine(request, machine)


def is_by_hand(request: LaunchRequest) -> bool:
    """Whether every node is started by someone else, and this process is one of them."""
    no_file = request.hostfile is None and not request.hosts
    several = request.num_nodes is not None and request.num_nodes > 1
    return request.no_ssh or (no_file and several and request.master_addr is not None)


def _is_this_machine(topology: Topology, machine: Machine) -> bool:
    return len(topology) == 1 and topology.hosts[0].name in machine.names


def _read_hostfile(request: LaunchRequest, machine: Machine) -> Found | None:
    if request.hostfile == "-":
        return Found(parse_hostfile_bytes(sys.stdin.buffer.read(), "stdin"), "stdin")
    path = Path(request.hostfile) if request.hostfile is not None else DEFAULT_HOSTFILE
    try:
        return Found(parse_hostfile_bytes((machine.cwd / path).read_bytes(), str(path)), f"hostfile {path}")
    except FileNotFoundError as error:
        if request.hostfile is None:
            return None
        raise UsageError(
            f"no hostfile {path}", "check --hostfile; without it this machine's devices are used"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read hostfile {path}: {error.strerror}", "check --hostfile") from error


def _this_machine(request: LaunchRequest, machine: Machine) -> Found:
    """One node of this machine's devices; by hand, as many nodes like it as there are said to be."""
    found = machine.visible(request.accelerator)
    slots, names = found.devices.slots, found.devices.names
    if found.kind == "cpu":
        filtered = request.include or request.exclude
        wanted = request.num_gpus if request.num_gpus is not None and request.num_gpus > 0 else 1
        slots = tuple(range(machine.num_cpus if filtered else wanted))
    elif not slots:
        raise UsageError(
            f"no {found.kind} device on this machine", "check its driver; or --accelerator cpu for CPU ranks"
        )
    num_nodes = request.num_nodes if request.num_nodes is not None and request.num_nodes > 0 else 1
    if num_nodes == 1:
        topology = Topology((Host(LOCAL_HOST, slots),))
        return Found(topology, "this machine", "", True, found.kind, names)
    if not is_by_hand(request):
        raise UsageError(
            f"--num_nodes {num_nodes} without a hostfile",
            "name the hosts with --hostfile, or start every node by hand with "
            "--node_rank N --master_addr A --master_port P",
        )
    nodes = Topology(tuple(Host(f"node-{i}", slots) for i in range(num_nodes)))
    return Found(nodes, BY_HAND, "", True, found.kind, names)
