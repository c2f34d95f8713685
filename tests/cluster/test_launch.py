"""The command over SSH on several hosts: network namespaces with a real sshd, and embedded servers."""

import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from launch_site import PAYLOAD, Site, wait_until_up
from nasty_arguments import NASTY
from netcluster import Cluster

from dslaunch.runner_backends.embedded import running_hosts

LAUNCHERS = ("ssh", "openssh", "pdsh")


@pytest.fixture(params=[*LAUNCHERS, "embedded"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    job = f"{request.node.name}-{os.getpid()}"
    if request.param == "embedded":
        with running_hosts(tmp_path / "hosts", 2) as served:
            yield Site(served.hosts.hostfile, served.hosts.ssh_config, tmp_path, job, "ssh")
        return
    _need(request.param)
    cluster: Cluster = request.getfixturevalue("cluster")
    yield Site(cluster.hostfile, cluster.ssh_config, tmp_path, job, request.param)


@pytest.fixture(params=LAUNCHERS)
def netns_site(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Site:
    _need(request.param)
    job = f"{request.node.name}-{os.getpid()}"
    return Site(cluster.hostfile, cluster.ssh_config, tmp_path, job, request.param)


def _need(launcher: str) -> None:
    if launcher == "pdsh" and shutil.which("pdsh") is None:
        pytest.skip("pdsh is not installed")


def test_ranks_arguments_and_values_over_ssh(site: Site) -> None:
    (site.folder / ".deepspeed_env").write_text(
        "ECHO=HARD RANK MASTER_PORT WORLD_SIZE\nHARD='a \"b\" $c\n`d`'\n"
    )
    result = site.run(PAYLOAD, "echo", *NASTY)
    assert result.returncode == 0, result.stderr
    lines = {
        line.partition("] ")[0]: json.loads(line.partition("] ")[2]) for line in result.stdout.splitlines()
    }
    assert sorted(lines) == ["[worker-0:0", "[worker-0:1", "[worker-1:2", "[worker-1:3"]
    for prefix, line in lines.items():
        assert line["args"] == NASTY
        assert line["env"]["HARD"] == 'a "b" $c\n`d`'
        assert (line["env"]["RANK"], line["env"]["WORLD_SIZE"]) == (prefix[-1], "4")


def test_a_relative_script_runs_in_the_launchers_folder(site: Site) -> None:
    (site.folder / "where.py").write_text("import os; print(os.getcwd())")
    result = site.run("where.py")
    assert {line.partition("] ")[2] for line in result.stdout.splitlines()} == {str(site.folder)}


def test_one_host_of_the_file_is_that_host(site: Site) -> None:
    (site.folder / ".deepspeed_env").write_text("ECHO=DSLAUNCH_HOST WORLD_SIZE SSH_CONNECTION\n")
    result = site.run(PAYLOAD, "echo", flags=["--include", "worker-1:1"])
    assert result.returncode == 0, result.stderr
    env = json.loads(result.stdout)["env"]
    assert (env["DSLAUNCH_HOST"], env["WORLD_SIZE"]) == ("worker-1", "1")
    assert env["SSH_CONNECTION"]


@pytest.mark.parametrize(("how", "code"), [("exit", 7), ("9", 137)])
def test_a_dead_rank_ends_the_job_on_both_hosts(site: Site, how: str, code: int) -> None:
    result = site.run(PAYLOAD, "crash", how)
    assert result.returncode == code
    assert "dslaunch: error: rank 1 (local rank 1, slot 1) on worker-0" in result.stderr
    assert result.stderr.splitlines()[-1] == "dslaunch: ended because of it: ranks 0, 2, 3"
    assert site.gone_within(5) == []


def test_kill_9_of_the_command_leaves_nothing_on_any_host(site: Site) -> None:
    with site.start(PAYLOAD, "stubborn") as process:
        wait_until_up(process)
        assert len(site.processes()) > 4
        process.kill()
    assert site.gone_within(10) == []


def test_ctrl_c_leaves_nothing_on_any_host(site: Site) -> None:
    with site.start(PAYLOAD, "wait") as process:
        wait_until_up(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "dslaunch: ended by SIGINT" in err
    assert site.gone_within(5) == []


def test_a_missing_script_is_named_with_its_host(site: Site) -> None:
    result = site.run("nope.py")
    assert result.returncode == 110
    host = result.stderr.partition("error: ")[2].partition(":")[0]
    assert host in ("worker-0", "worker-1")
    assert result.stderr.splitlines()[-2:] == [  # before it, who was waited for, where machines are slow
        f"dslaunch: error: {host}: no script nope.py in {site.folder}",
        "dslaunch: hint: copy it to this host or use a shared folder",
    ]


def test_an_unknown_host_fails_the_launch_before_anything_runs(site: Site) -> None:
    hostfile = site.folder / "hostfile"
    hostfile.write_text(site.hostfile.read_text() + "no-such-host.invalid slots=1\n")
    result = replace(site, hostfile=hostfile).run(PAYLOAD, "wait")
    assert result.returncode == 110
    assert result.stdout == ""
    error, hint = result.stderr.splitlines()
    assert error.startswith("dslaunch: error: no-such-host.invalid: ")
    assert hint.startswith("dslaunch: hint: ")
    assert site.gone_within(5) == []


def test_a_host_that_is_killed_is_named_and_the_other_cleaned(netns_site: Site, cluster: Cluster) -> None:
    with netns_site.start(PAYLOAD, "stubborn", flags=["--grace", "1"]) as process:
        wait_until_up(process)
        cluster.kill("worker-1")
        _, err = process.communicate(timeout=60)
    assert process.returncode == 111
    assert "dslaunch: error: host worker-1 (ranks 2, 3) was lost: " in err
    assert netns_site.gone_within(10) == []


def test_a_host_that_is_cut_off_cleans_itself_within_the_lease(netns_site: Site, cluster: Cluster) -> None:
    with netns_site.start(PAYLOAD, "stubborn", flags=["--grace", "1", "--lease", "5"]) as process:
        wait_until_up(process)
        cluster.cut("worker-1")
        _, err = process.communicate(timeout=60)
    assert process.returncode == 111
    assert "dslaunch: error: host worker-1 (ranks 2, 3) was lost: no sign of life for 5 s" in err
    assert netns_site.gone_within(8) == []  # nor is an ssh left here that waits for the host


@pytest.mark.parametrize("netns_site", ["pdsh"], indirect=True)
def test_jobs_that_start_together_meet_at_different_ports(netns_site: Site) -> None:
    """Though pdsh starts their agents twice."""
    (netns_site.folder / ".deepspeed_env").write_text("ECHO=MASTER_PORT\n")
    jobs = [netns_site.start(PAYLOAD, "echo") for _ in range(2)]
    ports = []
    for job in jobs:
        out, err = job.communicate(timeout=60)
        assert job.returncode == 0, err
        ports.append({line.partition("MASTER_PORT")[2] for line in out.splitlines()})
    assert [len(told) for told in ports] == [1, 1]
    assert ports[0] != ports[1]


TIE = """
import json, os, pathlib, sys, time
rank, delays = int(os.environ["RANK"]), json.loads(sys.argv[-1])
pathlib.Path(f"up{rank}").touch()
while not all(os.path.exists(f"up{i}") for i in range(4)):
    time.sleep(0.001)
first = max(os.stat(f"up{i}").st_mtime for i in range(4)) + 0.2
time.sleep(max(0.0, first + delays[rank] - time.time()))
pathlib.Path(f"end{rank}").write_text(str(time.time_ns()))
os._exit(10 + rank)
"""


@pytest.mark.parametrize("netns_site", ["ssh"], indirect=True)
@pytest.mark.parametrize("seed", range(5))
def test_of_failures_20_ms_apart_on_two_hosts_the_first_is_named(netns_site: Site, seed: int) -> None:
    """Which one was first is what they have written down themselves: a busy machine may delay one."""
    rng = random.Random(seed)
    (netns_site.folder / "tie.py").write_text(TIE)
    victim = rng.randrange(4)
    delays = [rng.choice((60.0, 0.3)) for _ in range(4)]
    delays[victim], delays[(victim + 2) % 4] = 0.0, 0.02  # on two hosts
    result = netns_site.run("tie.py", json.dumps(delays), flags=["--grace", "1"])
    ends = {int((netns_site.folder / f"end{i}").read_text()): i for i in (victim, (victim + 2) % 4)}
    first = ends[min(ends)]
    assert result.returncode == 10 + first
    place = f"rank {first} (local rank {first % 2}, slot {first % 2}) on worker-{first // 2}"
    assert f"dslaunch: error: {place} exited with code {10 + first}" in result.stderr


BROKEN_OFF = """
import os, signal, socket, sys, time
rank = int(os.environ["RANK"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
print("up", flush=True)
if rank == 0:
    with socket.create_server(address) as server:
        peer, _ = server.accept()
        sys.exit("the other host is gone" if peer.recv(1) == b"" else 0)
if rank == 2:
    while True:
        try:
            peer = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.05)
    time.sleep(0.5)
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(60)
"""


@pytest.mark.parametrize("netns_site", ["ssh"], indirect=True)
def test_a_lost_host_is_the_cause_of_what_fails_elsewhere_at_once(netns_site: Site) -> None:
    (netns_site.folder / "broken_off.py").write_text(BROKEN_OFF)
    result = netns_site.run("broken_off.py", flags=["--grace", "1"])
    assert result.returncode == 111
    assert "dslaunch: error: host worker-1 (ranks 2, 3) was lost: " in result.stderr


LOSES_A_HOST = """
import os, sys, time
print("up", flush=True)
if os.environ["DSLAUNCH_ATTEMPT"] == "0":
    time.sleep(120)
print("world", os.environ["WORLD_SIZE"], "on", os.environ["DSLAUNCH_HOST"], flush=True)
"""


@pytest.mark.parametrize("netns_site", ["ssh"], indirect=True)
def test_a_job_goes_on_with_the_hosts_that_are_left(netns_site: Site, cluster: Cluster) -> None:
    (netns_site.folder / "train.py").write_text(LOSES_A_HOST)
    with netns_site.start("train.py", flags=["--max_restarts", "2", "--min_nodes", "1"]) as process:
        wait_until_up(process)
        cluster.kill("worker-0")
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "dslaunch: error: host worker-0 (ranks 0, 1) was lost: " in err
    assert "dslaunch: restart 1 of 2 on 1 host" in err
    assert [line.partition("] ")[2] for line in out.splitlines()].count("world 2 on worker-1") == 2


@pytest.mark.parametrize("netns_site", ["ssh"], indirect=True)
def test_a_spare_host_takes_the_place_of_a_lost_one(netns_site: Site, cluster: Cluster) -> None:
    (netns_site.folder / "train.py").write_text(LOSES_A_HOST)
    with netns_site.start("train.py", flags=["--max_restarts", "2", "--spares", "1"]) as process:
        wait_until_up(process, num_ranks=2)
        cluster.kill("worker-0")
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert [line.partition("] ")[2] for line in out.splitlines()].count("world 2 on worker-1") == 2
