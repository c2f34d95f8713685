"""Join the other launchers of a job that was started by hand, before anything of it runs here."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version

from dslaunch.hostfile import Topology
from dslaunch.launcher.coordination.facts import JobFacts
from dslaunch.launcher.coordination.link import CoordinationError, LinkSettings, coordination
from dslaunch.launcher.errors import LaunchError
from dslaunch.launcher.hosts import BY_HAND
from dslaunch.launcher.node_plan import silence_s
from dslaunch.launcher.peers import Peers
from dslaunch.launcher.plan import LaunchPlan, Resolved


@asynccontextmanager
async def joined(
    resolved: Resolved, plan: LaunchPlan, log: Callable[[str], None]
) -> AsyncIterator[tuple[Resolved, str, Peers]]:
    """When every node is there: this one's place, the job's id, and the others. Raises LaunchError."""
    try:
        async with coordination(_settings(resolved, plan), log) as link:
            place = await link.join()
            yield _placed(resolved, place.node_rank), place.job_id, Peers(link)
    except CoordinationError as error:
        raise LaunchError(error.what, error.hint) from error


def _placed(resolved: Resolved, node_rank: int) -> Resolved:
    """This node at its place. Where nobody named the hosts, it goes by its own name."""
    hosts = list(resolved.topology.hosts)
    name = socket.gethostname()
    if resolved.origin == BY_HAND and all(host.name != name for host in hosts):
        hosts[node_rank] = replace(hosts[node_rank], name=name)
    return replace(resolved, own_node=node_rank, topology=Topology(tuple(hosts)))


def _settings(resolved: Resolved, plan: LaunchPlan) -> LinkSettings:
    request = resolved.request
    port = plan.master.port + 1 if request.coordination_port == "auto" else int(request.coordination_port)
    facts = JobFacts(
        version=version("dslaunch"),
        num_nodes=len(plan.nodes),
        world_size=plan.world_size,
        nodes=" ".join(f"{host.name}:{','.join(map(str, host.slots))}" for host in resolved.topology),
        program=request.script,
        content=resolved.script_digest,
        args=request.args,
        master_port=plan.master.port,
    )
    return LinkSettings(
        host=socket.gethostname(),
        node_rank=resolved.own_node,
        host_names=tuple(host.name for host in resolved.topology),
        facts=facts.facts(),
        master_addr=plan.master.addr,
        port=port,
        job_id=plan.job_id,
        key=resolved.job_key,
        start_timeout_s=request.start_timeout_s,
        lease_s=silence_s(request.lease_s),
    )
