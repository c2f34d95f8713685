"""Look up what a request refers to: hosts, devices, files. Everything after it is pure."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from dataclasses import replace

from dslaunch.hostfile import Host, Selection, Topology, find_pod, select
from dslaunch.launcher.accelerators import ACCELERATORS
from dslaunch.launcher.environment import (
    ENV_FILE_NAME,
    EnvFile,
    forward,
    parse_env_file,
    parse_settings,
)
from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.hosts import Found, find_hosts, is_by_hand
from dslaunch.launcher.machine import Machine
from dslaunch.launcher.plan import Resolved
from dslaunch.launcher.request import Launcher, LaunchRequest, Preflight, RunMode

JOB_KEY = "DSLAUNCH_JOB_KEY"


def resolve(request: LaunchRequest, machine: Machine) -> Resolved:
    """Raises UsageError or TopologyError where something is not there or does not fit."""
    request = _with_pod(request, machine)
    found = find_hosts(request, machine)
    selection = Selection(request.include, request.exclude, request.num_nodes, request.num_gpus)
    topology = _with_ssh_port(select(found.topology, selection), request.ssh_port)
    backend = _backend(request, found, topology, machine)
    cwd = request.cwd or str(machine.cwd)
    resolved = Resolved(
        request=request,
        topology=topology,
        origin=found.origin,
        forwarded=forward(
            machine.environ, _env_files(request, machine), cwd=cwd, accelerator=request.accelerator
        ),
        backend=backend,
        by_hand=is_by_hand(request),
        own_node=_own_node(request, topology),
        job_key=_job_key(request, machine),
        script_digest=_script_digest(request, machine),
        attempt=0,
        python=request.python or ("python3" if request.venv_script else sys.executable),
        cwd=cwd,
        device_kind=found.device_kind,
        visible_devices=_visible_devices_variable(request, found, machine),
        device_names=found.device_names,
    )
    _check(resolved, machine)
    return resolved


def _with_pod(request: LaunchRequest, machine: Machine) -> LaunchRequest:
    """What a pod's environment says where the command line says nothing, in no-SSH mode."""
    pod = find_pod(machine.environ) if request.no_ssh else None
    if pod is None:
        return request
    has_hosts = request.hostfile is not None or bool(request.hosts)
    return replace(
        request,
        node_rank=pod.node_rank if request.node_rank is None else request.node_rank,
        num_nodes=pod.num_nodes if request.num_nodes is None and not has_hosts else request.num_nodes,
        num_gpus=pod.num_slots if request.num_gpus is None and not has_hosts else request.num_gpus,
        master_addr=request.master_addr or pod.master_addr,
        master_port=request.master_port or pod.master_port,
    )


def _visible_devices_variable(request: LaunchRequest, found: Found, machine: Machine) -> str | None:
    """The variable that tells ranks their devices: of other hosts, where nobody says, as on this machine."""
    kind = found.device_kind
    if kind == "slot":
        kind = machine.count_devices(request.accelerator).kind
        if kind == "cpu" and request.accelerator == "auto":
            kind = "cuda"  # a login node without devices
    return ACCELERATORS[kind].visible_devices_variable


def _with_ssh_port(topology: Topology, port: int | None) -> Topology:
    if port is None:
        return topology
    return Topology(tuple(replace(host, port=host.port or port) for host in topology))


def _backend(request: LaunchRequest, found: Found, topology: Topology, machine: Machine) -> str:
    if is_by_hand(request) or (found.is_here and not request.force_multi):
        return "local"
    if request.launcher is Launcher.LOCAL:
        if len(topology) > 1:
            raise UsageError(
                f"--launcher local with {len(topology)} hosts", "use --launcher ssh, or --num_nodes 1"
            )
        return "local"
    if request.launcher is not Launcher.AUTO:
        return str(request.launcher.value)
    if _is_here(topology.hosts, machine) and not request.force_multi:
        return "local"
    return "slurm" if found.scheduler == "slurm" and machine.has_tool("srun") else "ssh"


def _is_here(hosts: tuple[Host, ...], machine: Machine) -> bool:
    """Whether this machine is the only host, and is not asked to be someone else there."""
    only = hosts[0]
    return len(hosts) == 1 and only.user is None and only.port is None and only.name in machine.names


def _own_node(request: LaunchRequest, topology: Topology) -> int | None:
    """Which node this process is in no-SSH mode. Raises UsageError where it is not told enough."""
    if not is_by_hand(request):
        if request.node_rank is not None:
            raise UsageError("--node_rank without --no_ssh", "add --no_ssh, or leave --node_rank out")
        return None
    if request.node_rank is None:
        if len(topology) == 1:
            return 0
        if request.coordination_port == "none":
            raise UsageError(
                "--no_ssh without --node_rank", "tell each node its place, or leave the coordination link on"
            )
    elif request.node_rank >= len(topology):
        raise UsageError(
            f"--node_rank {request.node_rank} of {len(topology)} nodes",
            f"node ranks are 0 to {len(topology) - 1}",
        )
    if len(topology) > 1 and request.master_addr is None:
        raise UsageError(
            "--no_ssh without --master_addr", "give every node the address of node 0: --master_addr A"
        )
    return request.node_rank


def _job_key(request: LaunchRequest, machine: Machine) -> bytes | None:
    """The key of the coordination link, from a file or a variable."""
    if request.job_key_file is None and JOB_KEY not in machine.environ:
        return None
    from dslaunch.launcher.coordination.auth import job_key

    if request.job_key_file is not None:
        try:
            return job_key((machine.cwd / request.job_key_file).read_bytes(), request.job_key_file)
        except OSError as error:
            raise UsageError(
                f"cannot read --job_key_file {request.job_key_file}: {error.strerror}", "check its path"
            ) from error
    return job_key(os.fsencode(machine.environ[JOB_KEY]), JOB_KEY)


def _script_digest(request: LaunchRequest, machine: Machine) -> str:
    """Of the script's bytes, where there is a file here to read."""
    path = machine.cwd / (request.cwd or "") / request.script
    if request.run_mode is not RunMode.SCRIPT or not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _env_files(request: LaunchRequest, machine: Machine) -> list[EnvFile]:
    """In the order in which later ones win: DeepSpeed's two files, then --env_file, then --env."""
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
    for named in request.env_file:
        try:
            text = (machine.cwd / named).read_bytes().decode("utf-8", "surrogateescape")
        except OSError as error:
            raise UsageError(f"cannot read --env_file {named}: {error.strerror}", "check its path") from error
        files.append(parse_env_file(text, named))
    if request.env:
        files.append(parse_settings(request.env, machine.environ))
    return files


def _check_restarts(resolved: Resolved) -> None:
    request, num_hosts = resolved.request, len(resolved.topology)
    if request.max_restarts == 0:
        for name, value in (("--spares", request.spares), ("--min_nodes", request.min_nodes)):
            if value:
                raise UsageError(f"{name} without --max_restarts", "say how often: --max_restarts 3")
    elif resolved.by_hand:
        raise UsageError("--max_restarts with nodes started by hand", "let the scheduler start them again")
    if request.spares >= num_hosts:
        raise UsageError(f"--spares {request.spares} of {num_hosts} hosts", "leave one host to train on")
    if request.min_nodes is not None and request.min_nodes > num_hosts - request.spares:
        raise UsageError(
            f"--min_nodes {request.min_nodes} of {num_hosts - request.spares} hosts", "ask for fewer"
        )


def _check(resolved: Resolved, machine: Machine) -> None:
    """What does not fit together is said before anything starts."""
    request = resolved.request
    if request.run_mode is RunMode.SCRIPT and resolved.backend == "local":
        path = machine.cwd / resolved.cwd / request.script
        if not path.is_file() and not path.is_dir():
            raise UsageError(
                f"no script {request.script} in {resolved.cwd}",
                "options of dslaunch come before the script, --module runs a module, --no_python a program",
            )
    num_ranks = resolved.topology.num_slots
    if request.stdin_rank is not None and request.stdin_rank >= num_ranks:
        raise UsageError(
            f"--stdin {request.stdin_rank} of {num_ranks} ranks", f"ranks are 0 to {num_ranks - 1}"
        )
    _check_restarts(resolved)
    if resolved.by_hand and (request.preflight is not Preflight.OFF or request.drop_bad):
        raise UsageError("--preflight with nodes started by hand", "run dslaunchctl check on each of them")
    if request.bind_core_list is not None and not request.bind_cores_to_rank:
        raise UsageError("--bind_core_list without --bind_cores_to_rank", "add --bind_cores_to_rank")
    for name in request.expand_remote:
        if name not in resolved.forwarded.variables:
            raise UsageError(
                f"--expand_remote {name}: {name} is not forwarded", f"set it: --env {name}=VALUE"
            )
    try:
        shlex.split(request.launcher_args)
    except ValueError as error:
        raise UsageError(
            f"--launcher_args {request.launcher_args!r}: {error}", "balance the quotes"
        ) from error
