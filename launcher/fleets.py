"""From the plan's backend to the fleet that starts its agents, and to the command lines a dry run shows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dslaunch.launcher.environment import is_secret
from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.fleet import Fleet
from dslaunch.launcher.group_fleet import ArgvFleet, GroupFleet, GroupSettings
from dslaunch.launcher.plan import LaunchPlan, Resolved, host_python
from dslaunch.launcher.render import agent_zip, argv_group_command, group_command, node_command
from dslaunch.launcher.session_fleet import SessionFleet
from dslaunch.runner_backends.command import Backend, GroupBackend, GroupCommand, NodeCommand

if TYPE_CHECKING:
    from dslaunch.runner_backends.openssh import OpenSshBackend


def check_backend(resolved: Resolved) -> None:
    """Raises UsageError where the backend cannot do what is asked of it. Starts nothing on any host."""
    backend, request = resolved.backend, resolved.request
    group = _group_backend(resolved)
    if group is None:
        return
    if any(host.python for host in resolved.topology):
        raise UsageError(
            f"python= in the hostfile with --launcher {backend}", "use --launcher ssh, or --python"
        )
    if group.has_stdin:
        return
    if request.stdin_rank is not None:
        raise UsageError(f"--stdin with --launcher {backend}, which carries no stdin", "use --launcher ssh")
    secrets = sorted(name for name in resolved.forwarded.variables if is_secret(name))
    if secrets:
        raise UsageError(
            f"everyone would see {', '.join(secrets)} in ps: {backend} carries it in argv",
            "use --launcher ssh, or do not forward it",
        )


def make_fleet(resolved: Resolved, plan: LaunchPlan) -> Fleet:
    """For a plan whose backend was checked."""
    request = resolved.request
    group = _group_backend(resolved)
    if group is None:
        commands = node_commands(resolved, plan)
        return SessionFleet(_backend(resolved), commands, python=resolved.python, lease_s=request.lease_s)
    settings = GroupSettings(
        num_nodes=len(plan.nodes),
        python=agent_python(resolved, resolved.python),
        lease_s=request.lease_s,
        render=lambda plans: render_group(resolved, plan, group, plans),
    )
    return GroupFleet(group, settings) if group.has_stdin else ArgvFleet(group, settings)


def agent_python(resolved: Resolved, python: str) -> tuple[str, ...]:
    """How the agent's interpreter is started: within the venv script, where there is one."""
    script = resolved.request.venv_script
    if script is None:
        return (python,)
    return ("bash", "-c", 'source "$0" && exec "$@"', script, python)


def asked_port(plan: LaunchPlan) -> str:
    """The port that agents are asked about, and the job they hold it for."""
    return f"{plan.master.port}/{plan.job_id}"


def node_commands(resolved: Resolved, plan: LaunchPlan) -> Mapping[int, NodeCommand]:
    """What is started on each launched node, by node rank."""
    archive = agent_zip(with_bytecode=True)
    hosts = resolved.topology.hosts
    return {
        node.node_rank: node_command(
            hosts[node.node_rank],
            agent_python(resolved, host_python(resolved, hosts[node.node_rank])),
            asked_port(plan),
            archive,
        )
        for node in plan.launched
    }


def render_group(resolved: Resolved, plan: LaunchPlan, group: GroupBackend, plans: str) -> GroupCommand:
    """What the tool is told to start everywhere."""
    hosts = resolved.topology.hosts
    archive = agent_zip(with_bytecode=group.has_stdin)  # argv has room for the source alone
    python = agent_python(resolved, resolved.python)
    if group.has_stdin:
        return group_command(hosts, python, asked_port(plan), archive, group.index_word)
    return argv_group_command(hosts, python, asked_port(plan), archive, group.index_word, plans)


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """What starts a node's agent, and the variables that are set for it. For the dry run."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]


def agent_commands(resolved: Resolved, plan: LaunchPlan) -> Sequence[AgentCommand]:
    """For each node its own command, or for all of them that of the tool."""
    group = _group_backend(resolved)
    if group is not None:
        command = render_group(resolved, plan, group, "")
        return [AgentCommand(group.tool_argv(command), group.tool_environment(command))] * len(plan.nodes)
    commands = node_commands(resolved, replace(plan, own_node=None))
    if resolved.backend == "openssh":
        openssh = _openssh(resolved)
        return [AgentCommand(openssh.tool_argv(command), {}) for _, command in sorted(commands.items())]
    return [AgentCommand(command.argv, {}) for _, command in sorted(commands.items())]


def _backend(resolved: Resolved) -> Backend:
    """A backend with a session for each host. They are imported when needed: asyncssh is slow to load."""
    match resolved.backend:
        case "local":
            from dslaunch.runner_backends.local import LocalBackend

            return LocalBackend()
        case "openssh":
            return _openssh(resolved)
    from dslaunch.runner_backends.ssh import SshBackend

    return SshBackend(_ssh_config(resolved))


def _openssh(resolved: Resolved) -> OpenSshBackend:
    from dslaunch.runner_backends.openssh import OpenSshBackend

    return OpenSshBackend(_ssh_config(resolved), launcher_args=_launcher_args(resolved))


def _group_backend(resolved: Resolved) -> GroupBackend | None:
    """A tool that starts all agents; None where the backend has a session for each host."""
    launcher_args = _launcher_args(resolved)
    match resolved.backend:
        case "pdsh":
            from dslaunch.runner_backends.pdsh import PdshBackend

            return PdshBackend(_ssh_config(resolved), launcher_args=launcher_args)
        case "slurm":
            from dslaunch.runner_backends.slurm import SlurmBackend

            return SlurmBackend(launcher_args=launcher_args)
        case "openmpi":
            from dslaunch.runner_backends.openmpi import OpenMpiBackend

            return OpenMpiBackend(_ssh_config(resolved), launcher_args=launcher_args)
        case "mpich" | "impi" | "mvapich" as name:
            from dslaunch.runner_backends.hydra import ImpiBackend, MpichBackend, MvapichBackend

            kinds: dict[str, type[MpichBackend] | type[ImpiBackend]] = {
                "mpich": MpichBackend,
                "impi": ImpiBackend,
                "mvapich": MvapichBackend,
            }
            return kinds[name](_ssh_config(resolved), launcher_args=launcher_args)
        case _:
            return None


def _ssh_config(resolved: Resolved) -> Path | None:
    config = resolved.request.ssh_config
    return None if config is None else Path(config)


def _launcher_args(resolved: Resolved) -> tuple[str, ...]:
    return tuple(shlex.split(resolved.request.launcher_args))
