"""`--dry_run`: the plan as one JSON object for programs, or as a table for people. Pure but for rich."""

from __future__ import annotations

import json
import shlex
import sys

from dslaunch.launcher.environment import all_masked
from dslaunch.launcher.fleets import agent_commands
from dslaunch.launcher.plan import LaunchPlan, Resolved, device_name
from dslaunch.launcher.request import Engine, LaunchRequest

_PIPE_WIDTH = 1000
"""Columns of a table that no terminal shows: one line a rank, for grep."""


_ENGINES = {
    Engine.AUTO: "auto, each host's own if installed, else bundled",
    Engine.BUNDLED: "bundled",
    Engine.INSTALLED: "installed",
}


def plan_as_json(resolved: Resolved, plan: LaunchPlan) -> str:
    """The documented format; see docs/dry-run.md."""
    commands = agent_commands(resolved, plan)
    record = {
        "world_size": plan.world_size,
        "master_addr": plan.master.addr,
        "master_port": plan.master.port,
        "backend": plan.backend,
        "engine": resolved.request.engine.value,
        "nodes": [
            {
                "node_rank": node.node_rank,
                "host": node.host,
                "env": all_masked(node.env),
                "argv": list(commands[node.node_rank].argv),
                "tool_env": dict(commands[node.node_rank].environ),
                "ranks": [
                    {
                        "rank": rank.rank,
                        "local_rank": rank.local_rank,
                        "slot": rank.slot,
                        "env": all_masked(rank.env),
                        "argv": list(rank.argv),
                    }
                    for rank in node.ranks
                ],
            }
            for node in plan.nodes
        ],
        "forwarded": all_masked(resolved.forwarded.variables),
    }
    return json.dumps(record, indent=2)


def request_as_yaml(request: LaunchRequest) -> str:
    """The command line as a job file."""
    from dslaunch.launcher.cli import COMMAND
    from dslaunch.launcher.job_file import write_job

    return write_job(request, COMMAND)


def print_table(resolved: Resolved, plan: LaunchPlan) -> None:
    """Rank map, meeting place and forwarded variables on stdout."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("rank", "local rank", "node rank", "host", "device", "command")
    for node, rank in plan.ranks:
        table.add_row(
            str(rank.rank),
            str(rank.local_rank),
            str(node.node_rank),
            escape(node.host),
            escape(device_name(resolved, rank.slot)),
            escape(shlex.join(rank.argv)),
        )
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(table)
    for line in _notes(resolved, plan):
        console.print(escape(line))


def _notes(resolved: Resolved, plan: LaunchPlan) -> list[str]:
    asked = not resolved.by_hand and len(plan.nodes) > 1 and resolved.request.master_addr is None
    where = " (the host is asked for its address at the start)" if asked else ""
    forwarded = resolved.forwarded
    counts = ", ".join(f"{source} {count}" for source, count in forwarded.counts.items())
    this_node = "" if plan.own_node is None else f", this is node {plan.own_node}"
    notes = [
        f"hosts: {resolved.origin}; backend: {plan.backend}{this_node}",
        f"deepspeed: {_ENGINES[resolved.request.engine]}",
        f"master: {plan.master.addr}:{plan.master.port}{where}",
        f"forwarded {len(forwarded.variables)} ({counts}), dropped {forwarded.num_dropped}",
    ]
    return notes + [f"  {name}={value}" for name, value in sorted(all_masked(forwarded.variables).items())]
