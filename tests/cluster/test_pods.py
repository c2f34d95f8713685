"""Every host runs the command by itself, with no SSH between them, and one of them fails."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from launch_site import PAYLOAD, Site
from netcluster import Cluster
from netcluster.process import Process


class Pods:
    """A launcher on each of two hosts, with two ranks each that ignore every polite signal."""

    def __init__(self, cluster: Cluster, site: Site, grace_s: int) -> None:
        self.cluster, self.site, self.grace_s = cluster, site, grace_s
        self.err = [site.folder / f"{host}.err" for host in cluster.workers]
        self._stack = ExitStack()
        self.launchers = [self._start(node_rank) for node_rank in range(2)]

    def _start(self, node_rank: int) -> "subprocess.Popen[str]":
        host = self.cluster.workers[node_rank]
        place = ["--no_ssh", "--num_nodes=2", f"--node_rank={node_rank}", "--num_gpus=2"]
        meeting = [f"--master_addr={self.cluster.ip('worker-0')}", f"--grace={self.grace_s}", "--lease=5"]
        err = self._stack.enter_context(self.err[node_rank].open("w"))
        out = self._stack.enter_context((self.site.folder / f"{host}.out").open("w"))
        argv = [*self.site.command, *place, *meeting, PAYLOAD, "stubborn"]
        return subprocess.Popen(
            self.cluster.exec_argv(host, argv),
            cwd=self.site.folder,
            env=self.site.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
        )

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 60
        outs = [self.site.folder / f"{host}.out" for host in self.cluster.workers]
        while sum(out.read_text().count("] up\n") for out in outs) < 4:
            assert time.monotonic() < deadline, [err.read_text() for err in self.err]
            assert all(launcher.poll() is None for launcher in self.launchers)
            time.sleep(0.05)

    def find(self, host: str, is_it: Callable[[Process], bool]) -> Process:
        (found,) = (one.process for one in self.cluster.user_procs(host) if is_it(one.process))
        return found

    def command(self, host: str) -> Process:
        return self.find(host, lambda process: "dslaunch.launcher.cli" in process.command)

    def agent(self, host: str) -> Process:
        command = self.command(host)
        return self.find(host, lambda process: process.parent_pid == command.pid)

    def rank(self, host: str) -> Process:
        agent = self.agent(host)
        ranks = [one.process for one in self.cluster.user_procs(host)]
        return max(
            (p for p in ranks if p.parent_pid == agent.pid and "stubborn" in p.command),
            key=lambda process: process.pid,
        )

    def ended(self) -> tuple[list[int], list[str]]:
        """Exit codes and last words, once everything is gone everywhere."""
        codes = [launcher.wait(60) for launcher in self.launchers]
        assert self.site.gone_within(10) == []
        return codes, [err.read_text() for err in self.err]

    def close(self) -> None:
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()
        self._stack.close()


@pytest.fixture
def pods(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pods]:
    job = f"{request.node.name}-{os.getpid()}"
    pods = Pods(cluster, Site(cluster.hostfile, None, tmp_path, job, "auto"), getattr(request, "param", 1))
    try:
        pods.wait_until_up()
        yield pods
    finally:
        pods.close()


def test_a_rank_that_dies_in_one_pod_ends_all_with_one_code(pods: Pods) -> None:
    os.kill(pods.rank("worker-1").pid, signal.SIGKILL)
    codes, errs = pods.ended()
    assert codes == [137, 137]
    for err in errs:
        assert "on worker-1 was killed by SIGKILL" in err


def test_an_agent_that_is_killed_in_one_pod_is_a_lost_host_to_all(pods: Pods) -> None:
    os.kill(pods.agent("worker-1").pid, signal.SIGKILL)
    codes, errs = pods.ended()
    assert codes == [111, 111]
    for err in errs:
        assert "host worker-1 (ranks 2, 3) was lost: its agent was killed by SIGKILL" in err


@pytest.mark.parametrize("host", ["worker-0", "worker-1"])
def test_a_command_that_is_killed_in_one_pod_is_a_lost_host_to_the_other(pods: Pods, host: str) -> None:
    """Be it the one that all others dial in to."""
    os.kill(pods.command(host).pid, signal.SIGKILL)
    codes, errs = pods.ended()
    victim = int(host[-1])
    assert codes[1 - victim] == 111
    assert f"(node rank {victim}) was lost: the connection was closed" in errs[1 - victim]


@pytest.mark.parametrize("pods", [300], indirect=True)
def test_pods_that_are_cut_off_end_with_the_lease_whatever_the_grace(pods: Pods) -> None:
    """With the worst manners: ranks that ignore SIGTERM. Of two, each may be the one that is cut off."""
    pods.cluster.cut("worker-1")
    codes, errs = pods.ended()
    assert codes == [111, 111]
    assert "host worker-1 (node rank 1) was lost: no sign of life for 4 s" in errs[0]
    assert "host worker-0 (node rank 0) was lost: no sign of life for 4 s" in errs[1]


@pytest.mark.parametrize("pods", [300], indirect=True)
def test_pods_whose_node_0_is_lost_wait_for_no_grace(pods: Pods) -> None:
    os.kill(pods.command("worker-0").pid, signal.SIGKILL)
    assert pods.ended()[0] == [-signal.SIGKILL, 111]
