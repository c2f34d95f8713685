"""The jobs whose faults are watched: one command line a launcher, here or over hosts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks import peers
from benchmarks.hosts import Cluster
from benchmarks.marked import MARKER
from dslaunch.launcher.ctl.chaos import rank
from dslaunch.launcher.ctl.chaos.faults import Fault

PAYLOAD = str(rank.__file__)
GRACE_S = 1
NUM_RANKS_A_HOST = 2
_LOCAL_RANKS = 4


@dataclass(frozen=True, slots=True)
class Scene:
    """Where one job runs: its hosts, None for this machine alone; its marker; how its ranks take SIGTERM."""

    cluster: Cluster | None
    job: str
    manners: str

    @property
    def num_ranks(self) -> int:
        return len(self.hosts.workers) * NUM_RANKS_A_HOST if self.cluster else _LOCAL_RANKS

    @property
    def hosts(self) -> Cluster:
        assert self.cluster is not None
        return self.cluster


@dataclass(frozen=True, slots=True)
class Subject:
    """One launcher. `has_cli` where one command runs it all; `has_agent` where ranks have another parent.

    `is_by_hand` where each host has a command of its own, as in pods: faults of the command are those of the
    victim's.
    """

    name: str
    argv: Callable[[Scene], list[str]]
    over_hosts: bool
    has_cli: bool = True
    has_agent: bool = True
    is_by_hand: bool = False
    is_peer: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)

    def suffers(self, fault: Fault) -> bool:
        """Whether the fault can happen to it, and is one of those that are compared here."""
        if fault in (Fault.KILL_WRAPPER, Fault.KILL_TOOL):
            return False
        if fault is Fault.KILL_AGENT:
            return self.has_agent
        return (self.has_cli or not fault.is_of_cli) and (self.over_hosts or not fault.needs_hosts)


def subjects() -> list[Subject]:
    """Ours, and the peers that this machine has."""
    found = [Subject("dslaunch local", _dslaunch_local, False, is_peer=False)]
    for launcher in ("ssh", "openssh", *(["pdsh"] if peers.find("pdsh") else [])):
        found.append(Subject(f"dslaunch {launcher}", _dslaunch_over(launcher), True, is_peer=False))
    found.append(Subject("dslaunch no-SSH", _dslaunch_pods, True, is_by_hand=True, is_peer=False))
    if torchrun := peers.find("torchrun"):
        # Alone, the command is the agent. Over hosts there is none for all: one is started on each.
        found.append(Subject("torchrun local", _torchrun_local(torchrun), False, has_agent=False))
        found.append(Subject("torchrun hosts", _torchrun_hosts(torchrun), True, has_cli=False))
    if mpirun := peers.open_mpi():
        found.append(Subject("mpirun local", _mpirun_local(mpirun), False, has_agent=False))
        found.append(Subject("mpirun hosts", _mpirun_hosts(mpirun), True))
    if deepspeed := peers.find("deepspeed"):
        variables = peers.DEEPSPEED_ENVIRON
        found.append(Subject("deepspeed local", _deepspeed_local(deepspeed), False, environ=variables))
        if peers.find("pdsh"):
            found.append(Subject("deepspeed pdsh", _deepspeed_pdsh(deepspeed), True, environ=variables))
    return found


def _dslaunch_local(scene: Scene) -> list[str]:
    return [peers.DSLAUNCH, "--num_gpus", str(scene.num_ranks), *_our_options(scene)]


def _dslaunch_over(launcher: str) -> Callable[[Scene], list[str]]:
    def argv(scene: Scene) -> list[str]:
        files = ["--hostfile", str(scene.hosts.hostfile), "--ssh_config", str(scene.hosts.ssh_config)]
        return [peers.DSLAUNCH, *files, "--launcher", launcher, *_our_options(scene)]

    return argv


def _dslaunch_pods(scene: Scene) -> list[str]:
    """One command on each host. The script ends with the code of the first, and tells all of them."""
    workers = scene.hosts.workers
    starts = []
    for node_rank in range(len(workers)):
        place = ["--no_ssh", "--num_nodes", str(len(workers)), "--node_rank", str(node_rank)]
        meeting = ["--master_addr", scene.hosts.ip(workers[0]), "--num_gpus", str(NUM_RANKS_A_HOST)]
        words = [peers.DSLAUNCH, *place, *meeting, *_our_options(scene)]
        line = shlex.join(scene.hosts.exec_argv(workers[node_rank], words))
        starts.append(f'{line} & pids="$pids $!"')
    wait = 'codes=; for pid in $pids; do wait $pid; codes="$codes $?"; done; echo "pods ended with$codes" >&2'
    # without job control a shell has what runs in the background ignore SIGINT
    return ["bash", "-c", "\n".join(["set -m; pids=", *starts, wait, "set -- $codes; exit $1"])]


def _our_options(scene: Scene) -> Sequence[str]:
    return ("--grace", str(GRACE_S), "--no_local_rank", PAYLOAD, scene.manners)


def _torchrun_local(torchrun: str) -> Callable[[Scene], list[str]]:
    def argv(scene: Scene) -> list[str]:
        one = ["--standalone", "--nproc-per-node", str(scene.num_ranks), "--shutdown-timeout", str(GRACE_S)]
        return [torchrun, *one, PAYLOAD, scene.manners]

    return argv


def _torchrun_hosts(torchrun: str) -> Callable[[Scene], list[str]]:
    def argv(scene: Scene) -> list[str]:
        workers = scene.hosts.workers
        options = [
            *("--nnodes", str(len(workers)), "--nproc-per-node", str(NUM_RANKS_A_HOST)),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{scene.hosts.ip(workers[0])}:29500"),
            *("--rdzv-id", scene.job, "--shutdown-timeout", str(GRACE_S)),
        ]
        words = ["env", f"{MARKER}={scene.job}", torchrun, *options, PAYLOAD, scene.manners]
        line = shlex.quote(shlex.join(words))
        starts = [f'ssh -F {scene.hosts.ssh_config} {host} {line} & pids="$pids $!"' for host in workers]
        wait = "code=0; for pid in $pids; do wait $pid || code=$?; done; exit $code"
        return ["sh", "-c", "\n".join(["pids=", *starts, wait])]

    return argv


def _mpirun_local(mpirun: Sequence[str]) -> Callable[[Scene], list[str]]:
    def argv(scene: Scene) -> list[str]:
        options = ["--map-by", ":OVERSUBSCRIBE", "-n", str(scene.num_ranks)]
        return [*mpirun, *options, sys.executable, PAYLOAD, scene.manners]

    return argv


def _mpirun_hosts(mpirun: Sequence[str]) -> Callable[[Scene], list[str]]:
    def argv(scene: Scene) -> list[str]:
        files = ["--hostfile", str(scene.hosts.hostfile)]
        way = ["--mca", "plm_rsh_agent", "ssh", "--mca", "plm_rsh_args", f"-F {scene.hosts.ssh_config}"]
        options = ["-x", MARKER, "-n", str(scene.num_ranks)]
        return [*mpirun, *files, *way, *options, sys.executable, PAYLOAD, scene.manners]

    return argv


def _deepspeed_local(deepspeed: str) -> Callable[[Scene], list[str]]:
    def argv(scene: Scene) -> list[str]:
        options = ["--hostfile", "/nonexistent", "--num_gpus", str(scene.num_ranks), "--no_local_rank"]
        return [deepspeed, *options, PAYLOAD, scene.manners]

    return argv


def _deepspeed_pdsh(deepspeed: str) -> Callable[[Scene], list[str]]:
    def argv(scene: Scene) -> list[str]:
        hosts = scene.hosts
        options = ["--hostfile", str(hosts.hostfile), "--launcher", "pdsh", "--no_local_rank"]
        master = ["--master_addr", hosts.ip(hosts.workers[0])]
        return hosts.run_argv([deepspeed, *options, *master, PAYLOAD, scene.manners])

    return argv
