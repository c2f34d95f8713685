"""The environment contract: the one place where the launcher's half meets the engine's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dslaunch.launcher.node_plan import node_id

DEFAULT_MASTER_PORT = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where one rank stands in the job."""

    rank: int
    local_rank: int
    local_size: int
    node_rank: int
    num_nodes: int
    world_size: int
    host: str


def rank_env(
    place: RankPlace,
    *,
    master_addr: str,
    master_port: int,
    visible_devices: tuple[str, str] | None,
    job_id: str,
    attempt: int,
) -> Mapping[str, str]:
    """The variables a rank finds, under the names of torchrun, of DeepSpeed and of Horovod.

    `visible_devices` is a variable and its value, the whole node's list, as DeepSpeed sets it; None leaves
    the host's own alone. With one device per rank `local_rank` is 0 and the list has one name. `attempt` is
    how often the job was started before; DSLAUNCH_RESUME tells later ones to go on from a checkpoint.
    """
    env = {
        "RANK": place.rank,
        "LOCAL_RANK": place.local_rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_WORLD_SIZE": place.local_size,
        "LOCAL_SIZE": place.local_size,
        "NODE_RANK": place.node_rank,
        "GROUP_RANK": place.node_rank,
        "CROSS_RANK": place.node_rank,
        "CROSS_SIZE": place.num_nodes,
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": master_port,
        "DSLAUNCH_JOB_ID": job_id,
        "DSLAUNCH_NODE_ID": node_id(job_id, place.node_rank),
        "DSLAUNCH_HOST": place.host,
        "DSLAUNCH_ATTEMPT": attempt,
    }
    if attempt:
        env["DSLAUNCH_RESUME"] = 1
    if visible_devices is not None:
        name, devices = visible_devices
        env[name] = devices
    return {name: str(value) for name, value in env.items()}
