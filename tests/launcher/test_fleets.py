"""What starts the agents, for every launcher, as the dry run shows it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dslaunch.hostfile import Host, Topology
from dslaunch.launcher.environment import Forwarded
from dslaunch.launcher.errors import UsageError
from dslaunch.launcher.fleets import agent_commands, check_backend
from dslaunch.launcher.master import assumed_master
from dslaunch.launcher.plan import Resolved, make_plan
from dslaunch.launcher.request import LaunchRequest


def resolved(backend: str, **flags: object) -> Resolved:
    return Resolved(
        request=LaunchRequest(script="x.py", ssh_config="cfg", **flags),  # type: ignore[arg-type]
        topology=Topology((Host("worker-0", (0, 1)), Host("worker-1", (0, 1)))),
        origin="hostfile hosts",
        forwarded=Forwarded({"NCCL_DEBUG": "INFO"}, {"NCCL": 1}, 0),
        backend=backend,
        by_hand=False,
        own_node=None,
        job_key=None,
        script_digest="",
        attempt=0,
        python="/usr/bin/python3",
        cwd="/job",
        device_kind="slot",
        visible_devices="CUDA_VISIBLE_DEVICES",
        device_names={},
    )


def shown(backend: str, **flags: object) -> tuple[list[str], Mapping[str, str]]:
    """The first node's command with its long words cut, and what is set for it."""
    here = resolved(backend, **flags)
    commands = agent_commands(here, make_plan(here, assumed_master(here), "dry-run"))
    assert len(commands) == 2
    words = [word if len(word) < 200 else "<agent>" for word in commands[0].argv]
    return [word for word in words if not word.isdecimal()], commands[0].environ


AGENT = ["/usr/bin/python3", "-ISu", "-c", "<agent>", "29500/dry-run"]


def test_the_agent_itself_over_built_in_ssh() -> None:
    assert shown("ssh") == (AGENT, {})


def test_the_agent_within_a_venv_script() -> None:
    assert shown("ssh", venv_script="/v/activate") == (
        ["bash", "-c", 'source "$0" && exec "$@"', "/v/activate", *AGENT],
        {},
    )


def test_pdsh_whole() -> None:
    argv, environ = shown("pdsh", launcher_args="-t 5")
    assert argv == ["pdsh", "-S", "-f", "-w", "worker-0,worker-1", "-t", "<agent>"]
    assert environ == {
        "PDSH_RCMD_TYPE": "ssh",
        "PDSH_SSH_ARGS_APPEND": "-F cfg -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3",
    }


def test_openssh_names_its_config_and_host() -> None:
    argv, _ = shown("openssh")
    assert argv[:2] == ["ssh", "-T"]
    assert argv[argv.index("-F") + 1] == "cfg"
    assert argv[-3:] == ["--", "worker-0", "<agent>"]


def test_slurm_starts_one_agent_a_node_in_the_order_of_the_plan() -> None:
    argv, _ = shown("slurm", launcher_args="--partition=gpu")
    assert argv[0] == "srun"
    assert {"--nodes=2", "--ntasks=2", "--partition=gpu", "--label"} <= set(argv)
    assert any("worker-0,worker-1" in word for word in argv)


@pytest.mark.parametrize("name", ["mpich", "impi"])
def test_hydra_starts_one_agent_a_node(name: str) -> None:
    argv, _ = shown(name)
    assert argv[0] == "mpirun"
    assert "worker-0,worker-1" in argv


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"stdin_rank": 0}, "--stdin with --launcher pdsh, which carries no stdin"),
        ({}, "everyone would see HF_TOKEN in ps: pdsh carries it in argv"),
    ],
)
def test_what_pdsh_cannot_do(flags: dict[str, object], error: str) -> None:
    secret = Forwarded({"HF_TOKEN": "x"}, {"--env": 1}, 0)
    with pytest.raises(UsageError) as caught:
        check_backend(replace(resolved("pdsh", **flags), forwarded=secret))
    assert str(caught.value) == error


def test_one_command_for_all_hosts_has_one_python() -> None:
    here = resolved("slurm")
    hosts = (Host("worker-0", (0,), python="/opt/python"), Host("worker-1", (0,)))
    with pytest.raises(UsageError, match="python= in the hostfile with --launcher slurm"):
        check_backend(replace(here, topology=Topology(hosts)))


def test_every_host_has_its_own_python_over_ssh() -> None:
    hosts = (Host("worker-0", (0,), python="/opt/python"), Host("worker-1", (0,)))
    here = replace(resolved("ssh"), topology=Topology(hosts))
    plan = make_plan(here, assumed_master(here), "dry-run")
    assert [command.argv[0] for command in agent_commands(here, plan)] == ["/opt/python", "/usr/bin/python3"]
    assert [rank.argv[0] for _, rank in plan.ranks] == ["/opt/python", "/usr/bin/python3"]


def test_nothing_is_looked_up_for_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("pdsh", "slurm", "mpich"):
        assert shown(name)[0]
