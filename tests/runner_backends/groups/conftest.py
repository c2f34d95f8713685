"""The lanes of the groups' contract suite: every tool for real where it is installed, and a stub of each."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from netcluster import Cluster, ClusterError, why_impossible
from netcluster.slurm import start_slurm

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import Group, GroupBackend, GroupCommand, SessionEnd

T = TypeVar("T")

LIMIT_S = 60.0
STUB = Path(__file__).parent / "stub_tool.py"
# Not in the order of their names: what sorts them is found out.
ORDER = ("worker-2", "worker-0", "worker-1")
REAL = {
    "pdsh": ("pdsh", "PdshBackend", {}),
    "slurm": ("slurm", "SlurmBackend", {}),
    "openmpi": ("openmpi", "OpenMpiBackend", {"program": "mpirun.openmpi"}),
    "mpich": ("hydra", "MpichBackend", {"program": "mpirun.mpich"}),
}
STUBS = {
    "pdsh": ("pdsh", "PdshBackend", ""),
    "slurm": ("slurm", "SlurmBackend", ""),
    "openmpi4": ("openmpi", "OpenMpiBackend", "openmpi4"),
    "openmpi5": ("openmpi", "OpenMpiBackend", "openmpi5"),
    "mpich": ("hydra", "MpichBackend", "mpich"),
    "impi": ("hydra", "ImpiBackend", "impi"),
}
LANES = [*REAL, *(f"{name}-stub" for name in STUBS)]


@dataclass(frozen=True)
class GroupRan:
    """A group that has ended: what each host said, in the order of the hosts."""

    outputs: tuple[bytes, ...]
    end: SessionEnd


@dataclass(frozen=True)
class GroupLane:
    """One backend, and hosts that it reaches."""

    name: str
    module: str
    kind: str
    options: dict[str, str] = field(default_factory=dict)
    hosts: tuple[Host, ...] = tuple(Host(name, (0,)) for name in ORDER)

    def make(self) -> GroupBackend:
        module = importlib.import_module(f"dslaunch.runner_backends.{self.module}")
        options = {k: Path(v) if k == "ssh_config" else v for k, v in self.options.items()}
        backend: GroupBackend = getattr(module, self.kind)(**options)
        return backend

    def command(self, *argv: str | bytes, hosts: tuple[Host, ...] | None = None) -> GroupCommand:
        return GroupCommand(hosts or self.hosts, tuple(os.fsdecode(word) for word in argv), b"")

    def drive(self, work: Callable[[GroupBackend], Awaitable[T]]) -> T:
        """Do something with a backend of this lane, and close it."""

        async def main() -> T:
            backend = self.make()
            try:
                return await work(backend)
            finally:
                await backend.close()

        return asyncio.run(asyncio.wait_for(main(), LIMIT_S))

    def run(self, *argv: str | bytes, hosts: tuple[Host, ...] | None = None) -> GroupRan:
        """Run a command to its own end."""

        async def work(backend: GroupBackend) -> GroupRan:
            return await self.finish(
                await backend.start(self.command(*argv, hosts=hosts)), len(hosts or self.hosts)
            )

        return self.drive(work)

    @staticmethod
    async def finish(group: Group, num_hosts: int = 3) -> GroupRan:
        """All that a group still says, and its end."""

        async def read(index: int) -> bytes:
            return b"".join([chunk async for chunk in group.output(index)])

        outputs = await asyncio.gather(*(read(index) for index in range(num_hosts)))
        return GroupRan(tuple(outputs), await group.wait())

    @property
    def as_json(self) -> str:
        """For another process to make the same backend."""
        return json.dumps([self.module, self.kind, self.options, [host.name for host in self.hosts]])


@pytest.fixture(scope="session")
def group_hosts() -> Iterator[Cluster | None]:
    """Three hosts of network namespaces, or None where this machine cannot have them."""
    if why_impossible() is not None:
        yield None
        return
    with Cluster(f"g{os.getpid()}") as cluster:
        cluster.up(len(ORDER))
        yield cluster


@pytest.fixture(params=LANES)
def group_lane(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[GroupLane]:
    """Every way to run a group of processes."""
    name, _, is_stub = request.param.partition("-")
    if is_stub:
        module, kind, mpi = STUBS[name]
        tool = {"pdsh": "pdsh", "slurm": "srun"}.get(name, "mpirun")
        script = tmp_path / "bin" / tool
        script.parent.mkdir()
        script.write_text(f"#!{sys.executable} -ISu\n{STUB.read_text()}")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("STUB_MPI", mpi)
        yield GroupLane(request.param, module, kind)
        return
    module, kind, options = REAL[name]
    tool = {"pdsh": "pdsh", "slurm": "srun"}.get(name, options.get("program", ""))
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    if name == "pdsh":
        options = {"ssh_config": str(request.getfixturevalue("aliases"))}
    elif name == "slurm":
        monkeypatch.setenv("SLURM_CONF", str(request.getfixturevalue("slurm_conf")))
    else:
        cluster: Cluster | None = request.getfixturevalue("group_hosts")
        if cluster is None:
            pytest.skip(f"{tool} needs hosts of its own: {why_impossible()}")
        options = {**options, "ssh_config": str(cluster.ssh_config)}
    yield GroupLane(request.param, module, kind, options)


@pytest.fixture(scope="session")
def aliases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ssh_config with three hosts: real ones, or three names of this machine."""
    cluster: Cluster | None = request.getfixturevalue("group_hosts")
    if cluster is not None:
        return cluster.ssh_config
    sshd = request.getfixturevalue("sshd")
    path = tmp_path_factory.mktemp("aliases") / "ssh_config"
    path.write_text(sshd.ssh_config.read_text().replace("Host sshd\n", f"Host {' '.join(ORDER)}\n"))
    return path


@pytest.fixture(scope="session")
def slurm_conf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Slurm on the three hosts."""
    cluster: Cluster | None = request.getfixturevalue("group_hosts")
    if cluster is None:
        pytest.skip(f"Slurm needs hosts of its own: {why_impossible()}")
    try:
        return start_slurm(cluster, tmp_path_factory.mktemp("slurm"))
    except ClusterError as error:
        pytest.skip(f"Slurm does not start here: {error}")
