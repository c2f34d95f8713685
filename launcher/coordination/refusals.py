"""Why nodes cannot join or a job cannot begin, in the words each of its pods prints. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dslaunch.launcher.coordination.facts import Difference
from dslaunch.launcher.coordination.protocol import HostName, Rejected, printable, rejected

_MAX_NAMED = 8


def differing(first: HostName, second: HostName, found: Sequence[Difference]) -> Rejected:
    """`first` is node 0."""
    fields = [
        f"{printable(item.name)}: {_value(item.first)} on {first}, {_value(item.second)} on {second}"
        for item in found
    ]
    return rejected(
        f"{first} and {second} were started differently: {_joined(fields, '; ')}",
        "start every node with the same command, files and version; only --node_rank differs",
    )


def _value(value: str | None) -> str:
    return "nothing" if value is None else "none" if not value else repr(value)


def doubled(node_rank: int, first: HostName, second: HostName, num_nodes: int) -> Rejected:
    where = f"twice on {first}" if first == second else f"on {first} and on {second}"
    return rejected(
        f"--node_rank {node_rank} was given {where}",
        f"give each of the {num_nodes} nodes its own: 0 to {num_nodes - 1}",
    )


def out_of_range(node_rank: int, host: HostName, num_nodes: int) -> Rejected:
    return rejected(
        f"--node_rank {node_rank} was given on {host}, but the job has {num_nodes} nodes",
        f"node ranks are 0 to {num_nodes - 1}",
    )


def missing(
    there: Mapping[int, HostName], unplaced: Sequence[HostName], host_names: Sequence[str], timeout_s: float
) -> Rejected:
    """`there` are the nodes that came with their place, `unplaced` those without; `host_names` the plan's."""
    absent = [rank for rank in range(len(host_names)) if rank not in there]
    late = len(absent) - len(unplaced)
    who = _joined([f"{rank} ({printable(host_names[rank])})" for rank in absent], ", ")
    if unplaced:
        came = _joined([*there.values(), *unplaced], ", ")
        what = (
            f"{late} of {len(host_names)} nodes did not join within {timeout_s:g} s; those that did: {came}"
        )
    else:
        what = f"{'node' if late == 1 else 'nodes'} {who} did not join within {timeout_s:g} s"
    return rejected(
        what,
        "see whether dslaunch runs there with this --master_addr and --master_port and can connect to the "
        "coordination port, or raise --start_timeout",
    )


def too_late(host: HostName, *, is_over: bool) -> Rejected:
    """`host` is node 0."""
    return rejected(
        f"the job of {host} has ended" if is_over else f"the job of {host} already runs with all its nodes",
        "start all nodes of a job together, or use another --master_port for another job",
    )


def left_early(host: HostName) -> Rejected:
    """`host` is node 0."""
    return rejected(f"dslaunch on {host} (node 0) ended before every node had joined", f"look there: {host}")


def other_protocol(protocol: int, host: HostName) -> Rejected:
    return rejected(
        f"dslaunch on {host} speaks protocol {protocol} of the coordination link, which this one does not",
        "install the same dslaunch on every node",
    )


def wrong_key(host: HostName) -> Rejected:
    """`host` is node 0."""
    return rejected(
        f"the job key here is not that of {host} (node 0)",
        "give every node the same DSLAUNCH_JOB_KEY or --job_key_file",
    )


def no_key(host: HostName) -> Rejected:
    """`host` is node 0."""
    return rejected(
        f"{host} (node 0) has a job key, and this node has none",
        "give every node the same DSLAUNCH_JOB_KEY or --job_key_file",
    )


def no_key_here(host: HostName) -> Rejected:
    """`host` is node 0."""
    return rejected(
        f"this node has a job key, and {host} (node 0) has none",
        "give every node the same DSLAUNCH_JOB_KEY or --job_key_file",
    )


def _joined(parts: Sequence[str], separator: str) -> str:
    more = f" and {len(parts) - _MAX_NAMED} more" if len(parts) > _MAX_NAMED else ""
    return separator.join(parts[:_MAX_NAMED]) + more
