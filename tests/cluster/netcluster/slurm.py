"""A Slurm on the hosts of a cluster: munged and slurmctld on the first worker, a slurmd on every one.

Debian: apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge
All of it runs inside the hosts, and goes with them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from netcluster.cluster import Cluster
from netcluster.command import tool
from netcluster.errors import ClusterError
from netcluster.process import wait_until

TOOLS = ("munged", "mungekey", "slurmctld", "slurmd", "srun", "sinfo")
_READY_S = 30.0


def start_slurm(cluster: Cluster, directory: Path) -> Path:
    """Start it, with its files in an empty `directory`, and wait until every worker is idle.

    The answer is the slurm.conf for SLURM_CONF, with which srun works here and on the hosts.
    Raises ClusterError, with the ends of the logs, where it does not start.
    """
    paths = {name: tool(name) for name in TOOLS}
    controller = cluster.workers[0]
    conf = directory / "slurm.conf"
    conf.write_text(_conf(cluster, directory))
    # Without this slurmd looks for a cgroup file system, and the hosts have none.
    (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    (directory / "state").mkdir()
    key = directory / "munge.key"

    def on(host: str, *argv: str) -> str:
        env = {**os.environ, "SLURM_CONF": str(conf)}
        ran = subprocess.run(cluster.exec_argv(host, argv), env=env, capture_output=True, text=True)
        if ran.returncode:
            raise ClusterError(f"{argv[0]} on {host}: {ran.stderr.strip()}{_logs(directory)}")
        return ran.stdout

    on(controller, paths["mungekey"], "--create", f"--keyfile={key}")
    key.chmod(0o600)
    # One munged serves all hosts: its socket is a file, and they share the file system.
    on(controller, paths["munged"], *_munged_options(directory), f"--key-file={key}", "--force")
    on(controller, paths["slurmctld"], "-c", "-f", str(conf))
    for host in cluster.workers:
        (directory / "spool" / host).mkdir(parents=True)
        on(host, paths["slurmd"], "-c", "-N", host, "-f", str(conf))

    def all_idle() -> bool:
        idle = on(controller, paths["sinfo"], "-h", "-N", "-t", "idle", "-o", "%N").split()
        return set(idle) == set(cluster.workers)

    if not wait_until(all_idle, _READY_S):
        raise ClusterError(f"no Slurm after {_READY_S:g} s{_logs(directory)}")
    return conf


def _munged_options(directory: Path) -> Sequence[str]:
    return (
        f"--socket={directory}/munge.socket",
        f"--pid-file={directory}/munged.pid",
        f"--log-file={directory}/munged.log",
        f"--seed-file={directory}/munged.seed",
        "--num-threads=4",
    )


def _conf(cluster: Cluster, directory: Path) -> str:
    controller = cluster.workers[0]
    nodes = "".join(
        f"NodeName={host} NodeAddr={cluster.ip(host)} CPUs=4 RealMemory=1000 State=UNKNOWN\n"
        for host in cluster.workers
    )
    return f"""ClusterName={cluster.prefix}
SlurmctldHost={controller}({cluster.ip(controller)})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdTimeout=10
InactiveLimit=0
{nodes}PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def _logs(directory: Path) -> str:
    return "".join(f"\n{path.name}: {path.read_text()[-500:]}" for path in sorted(directory.glob("*.log")))
