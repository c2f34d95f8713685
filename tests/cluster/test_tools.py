"""The command through tools that start the agents of all hosts at once: Slurm, Open MPI, MPICH."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_site import PAYLOAD, Site, wait_until_up
from nasty_arguments import NASTY
from netcluster import Cluster
from netcluster.slurm import TOOLS, start_slurm

_ADMIN_PATH = ":/usr/sbin:/sbin"


@pytest.fixture(scope="module")
def tool_cluster(netns_possible: None) -> Iterator[Cluster]:
    """Hosts whose daemons stay: those of the shared cluster are ended after each test."""
    with Cluster(f"u{os.getpid()}") as own:
        own.up(2, slots=2)
        yield own


@pytest.fixture(scope="module")
def slurm_conf(tool_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Slurm on these hosts."""
    missing = [name for name in TOOLS if shutil.which(name, path=os.environ["PATH"] + _ADMIN_PATH) is None]
    if missing:
        pytest.skip(f"Slurm is not installed: no {missing[0]}")
    return start_slurm(tool_cluster, tmp_path_factory.mktemp("slurm"))


@pytest.fixture(params=["openmpi", "mpich", "slurm"])
def site(request: pytest.FixtureRequest, tool_cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    launcher = request.param
    job = f"{request.node.name}-{os.getpid()}"
    if launcher == "slurm":
        conf = request.getfixturevalue("slurm_conf")
        yield Site(tool_cluster.hostfile, None, tmp_path, job, launcher, {"SLURM_CONF": str(conf)})
        return
    program = shutil.which(f"mpirun.{launcher}")
    if program is None:
        pytest.skip(f"{launcher} is not installed: no mpirun.{launcher}")
    # Where several are installed, mpirun is one of them. A link would not do: they look beside themselves.
    mpirun = tmp_path / "bin/mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    mpirun.chmod(0o755)
    path = f"{mpirun.parent}:{os.environ['PATH']}"
    yield Site(tool_cluster.hostfile, tool_cluster.ssh_config, tmp_path, job, launcher, {"PATH": path})


def test_ranks_arguments_and_values(site: Site) -> None:
    (site.folder / ".deepspeed_env").write_text("ECHO=HARD RANK WORLD_SIZE\nHARD='a \"b\" $c'\n")
    result = site.run(PAYLOAD, "echo", *NASTY, flags=["--preflight", "fast"])
    assert result.returncode == 0, result.stderr
    lines = {
        line.partition("] ")[0]: json.loads(line.partition("] ")[2]) for line in result.stdout.splitlines()
    }
    assert sorted(lines) == ["[worker-0:0", "[worker-0:1", "[worker-1:2", "[worker-1:3"]
    for prefix, line in lines.items():
        assert line["args"] == NASTY
        assert line["env"] == {"HARD": 'a "b" $c', "RANK": prefix[-1], "WORLD_SIZE": "4"}


def test_a_dead_rank_ends_the_job_on_both_hosts(site: Site) -> None:
    result = site.run(PAYLOAD, "crash", "exit")
    assert result.returncode == 7
    assert "dslaunch: error: rank 1 (local rank 1, slot 1) on worker-0 exited with code 7" in result.stderr
    assert "dslaunch: ended because of it: ranks 0, 2, 3" in result.stderr
    assert site.gone_within(5) == []


def test_kill_9_of_the_command_leaves_nothing_on_any_host(site: Site) -> None:
    with site.start(PAYLOAD, "stubborn") as process:
        wait_until_up(process)
        process.kill()
    assert site.gone_within(10) == []


def test_an_agent_that_is_killed_is_missed_at_once(site: Site) -> None:
    result = site.run(PAYLOAD, "kills_agent", flags=["--lease", "60"])
    assert result.returncode == 111
    assert (
        "dslaunch: error: host worker-1 (ranks 2, 3) was lost: its agent was killed by SIGKILL"
        in result.stderr
    )
    assert site.gone_within(10) == []
