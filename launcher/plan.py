"""From a resolved request to the LaunchPlan: who runs what, where, with which environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dslaunch.hostfile import Host, Topology
from dslaunch.launcher.environment import Forwarded
from dslaunch.launcher.node_plan import NodePlan, RankPlan
from dslaunch.launcher.rank_env import RankPlace, rank_env
from dslaunch.launcher.request import LaunchRequest, LocalRankScheme, RunMode


@dataclass(frozen=True, slots=True)
class Master:
    """Where the ranks meet: an address of the host of rank 0, and a port on it."""

    addr: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request with everything looked up that it referred to.

    Attributes:
        topology: the selected hosts and slots, in rank order; `origin`: where the hosts were found.
        backend: name of the backend: "local", "ssh", "pdsh", ...
        by_hand: whether every node is started by someone else (no-SSH mode).
        own_node: the node this process runs then; None where it runs them all, or is to be told.
        attempt: how often the job was started before.
        job_key: of the coordination link; script_digest: of the script's bytes, "" where there are none here.
        python: interpreter of the ranks and of the agents, where a host names no other.
        cwd: folder the ranks start in, on every host.
        device_kind: "cuda", "rocm", "cpu", ..., or "slot" where only the hosts know.
        visible_devices: name of the variable that tells a rank its devices; None to leave the host's own.
        device_names: this machine's own names of its slots (UUIDs), where they are no numbers.
    """

    request: LaunchRequest
    topology: Topology
    origin: str
    forwarded: Forwarded
    backend: str
    by_hand: bool
    own_node: int | None
    job_key: bytes | None
    script_digest: str
    attempt: int
    python: str
    cwd: str
    device_kind: str
    visible_devices: str | None
    device_names: Mapping[int, str]

    @property
    def is_linked(self) -> bool:
        """Whether this process joins others by the coordination link."""
        return self.by_hand and len(self.topology) > 1 and self.request.coordination_port != "none"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launch as a value: everything that will run, on every host.

    `own_node` is the one node that this process runs, in no-SSH mode; None where it runs them all.
    """

    job_id: str
    backend: str
    master: Master
    world_size: int
    nodes: tuple[NodePlan, ...]
    own_node: int | None

    @property
    def launched(self) -> tuple[NodePlan, ...]:
        """The nodes that this process starts."""
        return self.nodes if self.own_node is None else (self.nodes[self.own_node],)

    @property
    def ranks(self) -> tuple[tuple[NodePlan, RankPlan], ...]:
        """Every rank with its node, in rank order."""
        return tuple((node, rank) for node in self.nodes for rank in node.ranks)


def make_plan(
    resolved: Resolved, master: Master, job_id: str, network: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Ranks count up through the hosts in order, local ranks from 0 on each, whatever its slots.

    `network` are variables that were settled when the hosts had answered; what is set already wins.
    """
    first_ranks = [0]
    for host in resolved.topology:
        first_ranks.append(first_ranks[-1] + len(host.slots))
    world_size = first_ranks[-1]
    nodes = tuple(
        _node_plan(resolved, master, job_id, node_rank=i, first_rank=first_ranks[i], world_size=world_size)
        for i in range(len(resolved.topology))
    )
    if network:
        nodes = tuple(node._replace(defaults=network) for node in nodes)
    return LaunchPlan(job_id, resolved.backend, master, world_size, nodes, resolved.own_node)


def _node_plan(
    resolved: Resolved, master: Master, job_id: str, *, node_rank: int, first_rank: int, world_size: int
) -> NodePlan:
    request = resolved.request
    host = resolved.topology.hosts[node_rank]
    ranks = []
    for index, slot in enumerate(host.slots):
        rank = first_rank + index
        place = RankPlace(
            rank=rank,
            local_rank=_local_rank(request, rank, index, len(host.slots)),
            local_size=len(host.slots),
            node_rank=node_rank,
            num_nodes=len(resolved.topology),
            world_size=world_size,
            host=host.name,
        )
        env = rank_env(
            place,
            master_addr=master.addr,
            master_port=master.port,
            visible_devices=_visible_devices(
                resolved, (slot,) if request.one_device_per_rank else host.slots
            ),
            job_id=job_id,
            attempt=resolved.attempt,
        )
        argv = rank_argv(request, host_python(resolved, host), place.local_rank)
        ranks.append(RankPlan(rank, place.local_rank, slot, argv, env))
    return NodePlan(
        job_id=job_id,
        node_rank=node_rank,
        host=host.name,
        cwd=resolved.cwd,
        script=request.script if request.run_mode is RunMode.SCRIPT else "",
        defaults={},
        env=resolved.forwarded.variables,
        expanded=request.expand_remote,
        bound_cores=(request.bind_core_list or "") if request.bind_cores_to_rank else None,
        stdin_rank=request.stdin_rank,
        ranks=tuple(ranks),
        grace_s=request.grace_s,
        lease_s=request.lease_s,
        hears_launcher=True,
        engine=request.engine.value,
        keeps_output=any((request.run_dir, request.log_dir, request.enable_each_rank_log)),
    )


def _local_rank(request: LaunchRequest, rank: int, index: int, local_size: int) -> int:
    if request.one_device_per_rank:
        return 0  # the only device a rank sees is its device 0
    return rank % local_size if request.local_rank_scheme is LocalRankScheme.DEEPSPEED else index


def host_python(resolved: Resolved, host: Host) -> str:
    """The interpreter on a host."""
    return host.python or resolved.python


def rank_argv(request: LaunchRequest, python: str, local_rank: int) -> tuple[str, ...]:
    """What one rank executes. `--local_rank=N` comes first among the script's arguments, as in DeepSpeed."""
    match request.run_mode:
        case RunMode.SCRIPT:
            program: tuple[str, ...] = (python, "-u", request.script)
        case RunMode.MODULE:
            program = (python, "-u", "-m", request.script)
        case RunMode.PROGRAM:
            program = (request.script,)
    local = () if request.no_local_rank else (f"--local_rank={local_rank}",)
    return (*program, *local, *request.args)


def _visible_devices(resolved: Resolved, slots: tuple[int, ...]) -> tuple[str, str] | None:
    if resolved.visible_devices is None:
        return None
    names = ",".join(resolved.device_names.get(slot, str(slot)) for slot in slots)
    return resolved.visible_devices, names


def device_name(resolved: Resolved, slot: int) -> str:
    """How a rank's device is shown: `cuda:2`, `slot 2` where only the host knows, `cpu`."""
    match resolved.device_kind:
        case "cpu":
            return "cpu"
        case "slot":
            return f"slot {slot}"
        case kind:
            return f"{kind}:{resolved.device_names.get(slot, slot)}"
