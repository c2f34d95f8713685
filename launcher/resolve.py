"""Look up what a request refers to: files, devices, this machine's name. Everything after it is pure."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from dslaunch.hostfile import Host, Selection, Topology, parse_hostfile_bytes, select
from dslaunch.launcher import devices
from dslaunch.launcher.environment import ENV_FILE_NAME, EnvFile, forward, parse_env_file
from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.plan import Resolved
from dslaunch.launcher.request import Launcher, LaunchRequest, RunMode

DEFAULT_HOSTFILE = Path("/job/hostfile")
LOCAL_HOST = "localhost"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine the command line was typed on."""

    environ: Mapping[str, str]
    cwd: Path
    home: Path
    devices: devices.LocalDevices
    num_cpus: int
    names: frozenset[str]
    """What it calls itself."""

    @staticmethod
    def here() -> Machine:
        name = socket.gethostname()
        return Machine(
            environ=os.environ,
            cwd=_logical_cwd(),
            home=Path.home(),
            devices=devices.count(),
            num_cpus=os.cpu_count() or 1,
            names=frozenset({LOCAL_HOST, "127.0.0.1", "::1", name, name.partition(".")[0]}),
        )


def _logical_cwd() -> Path:
    """The current folder by the name the user reached it by: behind a link it may be another elsewhere."""
    named = os.environ.get("PWD", "")
    try:
        if named and os.path.isabs(named) and os.path.samefile(named, "."):
            return Path(named)
    except OSError:
        pass  # PWD is stale
    return Path.cwd()


@dataclass(frozen=True, slots=True)
class _Devices:
    """What a host without a hostfile offers: its slots, and their names where they are no numbers."""

    kind: str
    slots: tuple[int, ...]
    names: Mapping[int, str]


def resolve(request: LaunchRequest, machine: Machine) -> Resolved:
    """Raises UsageError or TopologyError where something is not there or does not fit."""
    hosts = _read_hostfile(request, machine)
    found = _local_devices(request, machine)
    if hosts is None:
        topology = _without_hostfile(request, found)
        backend, kind, names = "local", found.kind, found.names
    else:
        topology = hosts
        backend, kind, names = "ssh", "slot", {}
    selection = Selection(request.include, request.exclude, request.num_nodes, request.num_gpus)
    topology = select(topology, selection)
    if request.ssh_port is not None:
        topology = Topology(
            tuple(Host(h.name, h.slots, h.user, h.port or request.ssh_port) for h in topology.hosts)
        )
    if backend == "ssh" and (request.no_ssh or _runs_here(request, topology, machine)):
        backend = "local"
    own_node = _own_node(request, topology)
    _check_script(request, machine, backend)
    return Resolved(
        request=request,
        topology=topology,
        forwarded=forward(machine.environ, _env_files(machine), str(machine.cwd)),
        backend=backend,
        own_node=own_node,
        python=sys.executable,
        cwd=str(machine.cwd),
        device_kind=kind,
        device_names=names,
    )


def _read_hostfile(request: LaunchRequest, machine: Machine) -> Topology | None:
    path = Path(request.hostfile) if request.hostfile is not None else DEFAULT_HOSTFILE
    try:
        return parse_hostfile_bytes((machine.cwd / path).read_bytes(), str(path))
    except FileNotFoundError as error:
        if request.hostfile is None:
            return None
        raise UsageError(
            f"no hostfile {path}", "check --hostfile; without it this machine's devices are used"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read hostfile {path}: {error.strerror}", "check --hostfile") from error


def _local_devices(request: LaunchRequest, machine: Machine) -> _Devices:
    kind, num_devices = machine.devices.kind, machine.devices.num_devices
    visible = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if kind == "cuda" and visible is not None:
        entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
        entries = list(takewhile(lambda entry: not entry.startswith("-"), entries))  # CUDA stops at -1
        if entries and all(entry.isdecimal() for entry in entries):
            return _Devices(kind, tuple(int(entry) for entry in entries), {})
        if entries:  # UUIDs and MIG names have no numbers of their own
            return _Devices(kind, tuple(range(len(entries))), dict(enumerate(entries)))
        kind = "cpu"
    if kind == "cpu":
        filtered = request.include or request.exclude
        return _Devices(kind, tuple(range(machine.num_cpus if filtered else request.num_gpus or 1)), {})
    return _Devices(kind, tuple(range(num_devices)), {})


def _without_hostfile(request: LaunchRequest, found: _Devices) -> Topology:
    num_nodes = request.num_nodes or 1
    if num_nodes == 1:
        return Topology((Host(LOCAL_HOST, found.slots),))
    if not request.no_ssh:
        raise UsageError(
            f"--num_nodes {num_nodes} without a hostfile",
            "name the hosts with --hostfile, or start every node by hand with "
            "--no_ssh --node_rank N --master_addr A --master_port P",
        )
    return Topology(tuple(Host(f"node-{i}", found.slots) for i in range(num_nodes)))


def _runs_here(request: LaunchRequest, topology: Topology, machine: Machine) -> bool:
    if request.launcher is Launcher.LOCAL:
        if len(topology) > 1:
            raise UsageError(
                f"--launcher local with {len(topology)} hosts", "use --launcher ssh, or --num_nodes 1"
            )
        return True
    only = topology.hosts[0]
    is_here = len(topology) == 1 and only.user is None and only.port is None and only.name in machine.names
    return is_here and request.launcher is Launcher.AUTO and not request.force_multi


def _own_node(request: LaunchRequest, topology: Topology) -> int | None:
    """Which node this process is in no-SSH mode. Raises UsageError where it is not told enough."""
    if not request.no_ssh:
        if request.node_rank is not None:
            raise UsageError("--node_rank without --no_ssh", "add --no_ssh, or leave --node_rank out")
        return None
    if request.node_rank is None:
        raise UsageError("--no_ssh without --node_rank", "tell each node its place: --node_rank 0, 1, ...")
    if request.node_rank >= len(topology):
        raise UsageError(
            f"--node_rank {request.node_rank} of {len(topology)} nodes",
            f"node ranks are 0 to {len(topology) - 1}",
        )
    if len(topology) > 1 and request.master_addr is None:
        raise UsageError(
            "--no_ssh without --master_addr", "give every node the address of node 0: --master_addr A"
        )
    return request.node_rank


def _check_script(request: LaunchRequest, machine: Machine, backend: str) -> None:
    if request.run_mode is RunMode.SCRIPT and backend == "local":
        path = machine.cwd / request.script
        if not path.is_file() and not path.is_dir():
            raise UsageError(
                f"no script {request.script} in {machine.cwd}",
                "options of dslaunch come before the script, --module runs a module, --no_python a program",
            )


def _env_files(machine: Machine) -> list[EnvFile]:
    """The env files in DeepSpeed's order: the home's, then the current folder's, which wins."""
    name = machine.environ.get("DS_ENV_FILE", ENV_FILE_NAME)
    files = []
    for path in dict.fromkeys((machine.home / name, machine.cwd / name)):
        try:
            text = path.read_bytes().decode("utf-8", "surrogateescape")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise UsageError(
                f"cannot read {path}: {error.strerror}", "make it readable, or remove it"
            ) from error
        files.append(parse_env_file(text, str(path)))
    if not files and "DS_ENV_FILE" in machine.environ:
        raise UsageError(f"DS_ENV_FILE names {name}, which is not there", "correct or unset DS_ENV_FILE")
    return files
