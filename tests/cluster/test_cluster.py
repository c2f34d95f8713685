"""The cluster itself: its hosts are real enough, its faults bite, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from netcluster import Cluster, ClusterError, wait_until
from netcluster.process import in_netns

PATIENCE_S = 30.0


def prefix(letter: str) -> str:
    return f"{letter}{os.getpid()}"[:8]


def ssh(cluster: Cluster, host: str, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", "-F", str(cluster.ssh_config), *options, host, command]
    return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)


def says(cluster: Cluster, host: str, command: str) -> str:
    done = ssh(cluster, host, command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commands(cluster: Cluster, host: str | None = None) -> list[tuple[str, str]]:
    return [(found.host, found.process.command) for found in cluster.user_procs(host)]


def connects(cluster: Cluster, source: str, destination: str) -> bool:
    """Whether a TCP connection from one host to the other's sshd comes about within a second."""
    attempt = f"import socket; socket.create_connection(('{cluster.ip(destination)}', 22), timeout=1)"
    argv = cluster.exec_argv(source, [sys.executable, "-c", attempt])
    return subprocess.run(argv, capture_output=True, timeout=60).returncode == 0


def traces(prefix: str) -> list[str]:
    """Everything of a cluster that can be found on the machine."""
    found = [str(path) for path in Path("/run/netns").glob(f"{prefix}-*")]
    found += [str(path) for path in Path("/run/netcluster").glob(f"{prefix}*")]
    found += [str(path) for path in Path("/sys/class/net").glob(f"{prefix}-*")]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"/run/netcluster/{prefix}/".encode() in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    return found


class Session:
    """An ssh session on a host that runs `sleep` until it is ended."""

    def __init__(self, cluster: Cluster, host: str, seconds: int) -> None:
        options = ["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2", "-o", "LogLevel=INFO"]
        argv = ["ssh", "-F", str(cluster.ssh_config), *options, host, f"sleep {seconds}"]
        self.client = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert wait_until(lambda: (host, f"sleep {seconds}") in commands(cluster, host), PATIENCE_S)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.kill()
        self.client.communicate()


# Hosts


def test_every_host_has_its_own_name_and_address(cluster: Cluster) -> None:
    assert cluster.workers == ("worker-0", "worker-1")
    for host in cluster.workers:
        assert says(cluster, host, "hostname; hostname -I").split() == [host, cluster.ip(host)]


def test_hosts_reach_each_other_by_ssh_and_root_is_not_changed(cluster: Cluster) -> None:
    assert says(cluster, "worker-0", "ssh worker-1 hostname") == "worker-1"
    assert "worker-" not in Path("/etc/hosts").read_text()


def test_the_hostfile_names_the_workers_and_their_slots(cluster: Cluster) -> None:
    assert cluster.hostfile.read_text() == "worker-0 slots=2\nworker-1 slots=2\n"


def test_there_is_no_way_out_of_the_cluster(cluster: Cluster) -> None:
    attempt = "import socket; socket.create_connection(('192.0.2.1', 53), timeout=1)"
    done = ssh(cluster, "worker-0", f'{sys.executable} -c "{attempt}"')
    assert "Network is unreachable" in done.stderr


def test_hosts_share_neither_processes_nor_shared_memory(cluster: Cluster) -> None:
    says(cluster, "worker-0", "touch /dev/shm/mark")
    assert says(cluster, "worker-1", "ls /dev/shm") == ""
    assert int(says(cluster, "worker-1", "ls -d /proc/[0-9]* | wc -l")) < 10
    says(cluster, "worker-0", "rm /dev/shm/mark")


def test_exec_runs_on_the_host_in_the_callers_folder(cluster: Cluster) -> None:
    argv = cluster.exec_argv("worker-1", ["sh", "-c", 'hostname; pwd; echo "$1"', "sh", "a  b"])
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["worker-1", os.getcwd(), "a  b"]


def test_run_knows_the_hosts_by_their_plain_names(cluster: Cluster) -> None:
    argv = cluster.run_argv(["sh", "-c", "getent hosts worker-1; ssh worker-1 hostname"])
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [cluster.ip("worker-1"), "worker-1", "worker-1"]


def test_a_daemon_is_seen_on_its_host_and_nowhere_else(cluster: Cluster) -> None:
    assert commands(cluster) == []
    says(cluster, "worker-0", "setsid sleep 71 >/dev/null 2>&1 </dev/null &")
    assert wait_until(lambda: commands(cluster) == [("worker-0", "sleep 71")], PATIENCE_S)
    assert commands(cluster, "worker-1") == []
    os.kill(cluster.user_procs("worker-0")[0].process.pid, signal.SIGKILL)
    assert wait_until(lambda: commands(cluster) == [], PATIENCE_S)


def test_init_reaps_orphans(cluster: Cluster) -> None:
    says(cluster, "worker-0", "setsid sh -c 'sleep 0.05 & exec true' >/dev/null 2>&1 </dev/null &")

    def no_zombie() -> bool:
        return "Z" not in says(cluster, "worker-0", "cat /proc/[0-9]*/stat 2>/dev/null | cut -d' ' -f3")

    assert wait_until(no_zombie, PATIENCE_S)


# Faults


def test_cut_drops_new_connections_in_silence_until_healed(cluster: Cluster) -> None:
    cluster.cut("worker-1")
    done = ssh(cluster, "worker-1", "true", "-o", "ConnectTimeout=1")
    assert (done.returncode, "timed out" in done.stderr) == (255, True), done.stderr
    assert not connects(cluster, "worker-0", "worker-1")
    assert says(cluster, "worker-0", "hostname") == "worker-0"
    cluster.heal("worker-1")
    assert connects(cluster, "worker-0", "worker-1")


def test_cut_leaves_open_connections_without_a_word(cluster: Cluster) -> None:
    with Session(cluster, "worker-1", 72) as session:
        cluster.cut("worker-1")
        assert session.client.wait(timeout=PATIENCE_S) == 255
        assert session.client.stderr is not None
        assert b"not responding" in session.client.stderr.read()
        assert commands(cluster, "worker-1") == [("worker-1", "sleep 72")]


def test_cut_between_two_hosts_leaves_the_others(cluster: Cluster) -> None:
    cluster.cut("worker-0", "worker-1")
    assert not connects(cluster, "worker-0", "worker-1")
    assert not connects(cluster, "worker-1", "worker-0")
    assert says(cluster, "worker-0", "hostname") == "worker-0"
    cluster.heal("worker-0")
    assert connects(cluster, "worker-1", "worker-0")


def test_cut_from_root_leaves_the_hosts_to_each_other(cluster: Cluster) -> None:
    cluster.cut("worker-0", "root")
    assert ssh(cluster, "worker-0", "true", "-o", "ConnectTimeout=1").returncode == 255
    assert connects(cluster, "worker-1", "worker-0")


def test_kill_ends_all_processes_and_closes_connections(cluster: Cluster) -> None:
    with Session(cluster, "worker-1", 73) as session:
        says(cluster, "worker-1", "setsid sh -c \"trap '' TERM; sleep 74\" >/dev/null 2>&1 </dev/null &")
        cluster.kill("worker-1")
        assert session.client.wait(timeout=PATIENCE_S) == 255
        assert session.client.stderr is not None
        assert b"closed" in session.client.stderr.read()
    assert cluster.user_procs() == []
    assert "Connection refused" in ssh(cluster, "worker-1", "true").stderr
    cluster.boot("worker-1")
    assert says(cluster, "worker-1", "hostname") == "worker-1"


def test_crash_ends_all_processes_in_silence(cluster: Cluster) -> None:
    with Session(cluster, "worker-1", 75) as session:
        cluster.crash("worker-1")
        assert cluster.user_procs() == []
        assert session.client.wait(timeout=PATIENCE_S) == 255
        assert session.client.stderr is not None
        assert b"not responding" in session.client.stderr.read()
    with pytest.raises(ClusterError, match="worker-1 is not running"):
        cluster.exec_argv("worker-1", ["true"])
    cluster.boot("worker-1")
    assert says(cluster, "worker-1", "hostname") == "worker-1"


def test_a_frozen_host_accepts_and_does_not_answer(cluster: Cluster) -> None:
    cluster.freeze("worker-0")
    assert connects(cluster, "worker-1", "worker-0")
    assert ssh(cluster, "worker-0", "true", "-o", "ConnectTimeout=1").returncode == 255
    cluster.thaw("worker-0")
    assert says(cluster, "worker-0", "hostname") == "worker-0"


# From nothing to nothing


@pytest.fixture
def second(netns_possible: None) -> Iterator[Cluster]:
    with Cluster(prefix("u")) as cluster:
        yield cluster


def test_two_clusters_do_not_see_each_other(cluster: Cluster, second: Cluster) -> None:
    second.up(2, login=True, slots=8)
    assert second.hosts == ("login", "worker-0", "worker-1")
    assert second.hostfile.read_text() == "worker-0 slots=8\nworker-1 slots=8\n"
    assert says(second, "login", "ssh worker-1 hostname") == "worker-1"
    argv = second.exec_argv("login", ["ssh", "-o", "ConnectTimeout=1", cluster.ip("worker-0"), "true"])
    assert "Network is unreachable" in subprocess.run(argv, capture_output=True, text=True).stderr
    second.down()
    assert traces(second.prefix) == []
    assert says(cluster, "worker-0", "hostname") == "worker-0"


def test_debian_hosts_give_the_own_name_a_loopback_address(second: Cluster) -> None:
    second.up(1, debian_hosts=True)
    assert says(second, "worker-0", "getent hosts worker-0").split()[0] == "127.0.1.1"


def test_down_leaves_nothing_whatever_runs(second: Cluster) -> None:
    second.up(3)
    assert traces(second.prefix)
    says(second, "worker-2", "setsid sh -c \"trap '' TERM HUP; sleep 76\" >/dev/null 2>&1 </dev/null &")
    second.cut("worker-0")
    second.freeze("worker-1")
    found = {process.pid for host in second.hosts for process in in_netns(f"{second.prefix}-{host}")}
    assert len(found) > 3 * 3
    second.down()
    second.down()
    assert traces(second.prefix) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)


@pytest.mark.parametrize("trace", ["keygen", "netns", "init", "ready"])
def test_down_removes_a_cluster_whose_builder_was_killed(second: Cluster, trace: str) -> None:
    state_dir = Path("/run/netcluster") / second.prefix
    signs = {
        "keygen": state_dir / "id_ed25519",
        "netns": Path(f"/run/netns/{second.prefix}-worker-3"),
        "init": state_dir / "worker-3" / "init.log",
        "ready": state_dir / "worker-3" / "sshd.pid",
    }
    argv = [sys.executable, "-m", "netcluster", "-p", second.prefix, "up", "4"]
    builder = subprocess.Popen(argv, cwd=Path(__file__).parent, stdout=subprocess.DEVNULL)
    try:
        assert wait_until(signs[trace].exists, PATIENCE_S)
    finally:
        builder.kill()
        builder.wait()

    def removed() -> bool:  # what the builder had started may have been on its way at the first look
        second.down()
        return traces(second.prefix) == []

    assert wait_until(removed, PATIENCE_S)


@pytest.fixture
def four(netns_possible: None) -> Iterator[list[str]]:
    """Prefixes of four clusters that are down, and will be again."""
    prefixes = [prefix(letter) for letter in "wxyz"]
    yield prefixes
    for name in prefixes:
        Cluster(name).down()


def test_several_go_up_and_down_at_once(four: list[str]) -> None:
    def all_at_once(*order: str) -> list[int]:
        argvs = [[sys.executable, "-m", "netcluster", "-p", name, *order] for name in four]
        folder = Path(__file__).parent
        running = [subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL) for argv in argvs]
        return [process.wait() for process in running]

    assert all_at_once("up", "2") == [0, 0, 0, 0]
    assert len({Cluster(name).ip("worker-0") for name in four}) == 4
    assert all_at_once("down") == [0, 0, 0, 0]
    assert [traces(name) for name in four] == [[], [], [], []]


def test_a_cluster_without_its_files_is_found_by_name(second: Cluster) -> None:
    second.up(2)
    subprocess.run(["rm", "-r", f"/run/netcluster/{second.prefix}"], check=True)
    Cluster(second.prefix).down()
    assert traces(second.prefix) == []


def test_another_process_can_use_and_remove_it(second: Cluster) -> None:
    second.up(1)

    def by_hand(*words: str) -> str:
        argv = [sys.executable, "-m", "netcluster", "-p", second.prefix, *words]
        done = subprocess.run(argv, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        return done.stdout

    assert by_hand("exec", "worker-0", "hostname") == "worker-0\n"
    says(second, "worker-0", "setsid sleep 77 >/dev/null 2>&1 </dev/null &")
    assert wait_until(lambda: "sleep 77" in by_hand("ps"), PATIENCE_S)
    by_hand("crash", "worker-0")
    by_hand("boot", "worker-0")
    assert by_hand("ps") == ""
    by_hand("down")
    assert traces(second.prefix) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "prefix '' does not match [a-z][a-z0-9]{0,7}"),
        ("ninechars", "prefix 'ninechars' does not match [a-z][a-z0-9]{0,7}"),
        ("../x", "prefix '../x' does not match [a-z][a-z0-9]{0,7}"),
    ],
)
def test_a_prefix_that_cannot_name_interfaces_is_refused(name: str, text: str) -> None:
    with pytest.raises(ClusterError) as refused:
        Cluster(name)
    assert str(refused.value) == text


def test_a_host_that_is_not_there_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ClusterError) as refused:
        cluster.cut("worker-9")
    assert str(refused.value) == f"no host 'worker-9' in cluster '{cluster.prefix}': worker-0 worker-1"


def test_a_cluster_that_is_not_up_says_so(netns_possible: None) -> None:
    with pytest.raises(ClusterError) as refused:
        Cluster(prefix("v")).kill("worker-0")
    assert str(refused.value) == f"cluster '{prefix('v')}' is not up"
