"""Several hosts on one machine, for real: each a set of namespaces with an sshd, behind one switch."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from netcluster import network
from netcluster.command import run, tool
from netcluster.errors import ClusterError
from netcluster.files import write_files
from netcluster.host import Host
from netcluster.layout import MAX_WORKERS, Layout, check_prefix, read_layout
from netcluster.lock import locked
from netcluster.process import Process, all_processes, end_all, in_netns

STATE_BASE = Path("/run/netcluster")
_SUBNETS_LOCK = STATE_BASE / ".subnets.lock"


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process and the host it runs on; its pid is the machine's, not the host's."""

    host: str
    process: Process


class Cluster:
    """One cluster, named by its prefix; several may stand side by side.

        with Cluster("t1") as cluster:
            cluster.up(3, login=True)
            cluster.cut("worker-1")

    Every host has its own network, host name, processes, IPC, /dev/shm, /etc/hosts and sshd on port 22;
    the file system is the machine's. All is found again by its names, so that another process can
    use or remove the cluster, whatever became of the one that built it.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = check_prefix(prefix)
        self._state_dir = STATE_BASE / prefix
        self._lock = STATE_BASE / f"{prefix}.lock"
        self._hosts: dict[str, Host] = {}
        self._layout = read_layout(self._state_dir / "layout.json")
        if self._layout is not None:
            self._adopt(self._layout)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.down()

    @property
    def layout(self) -> Layout:
        """Names and addresses. Raises ClusterError while the cluster is not up."""
        if self._layout is None:
            raise ClusterError(f"cluster {self.prefix!r} is not up")
        return self._layout

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.layout.hosts

    @property
    def workers(self) -> tuple[str, ...]:
        return self.layout.workers

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F`: with it, root and every host log in to every host by its name."""
        return self._state_dir / "ssh_config"

    @property
    def hostfile(self) -> Path:
        """The workers and their slots, in the launcher's format."""
        return self._state_dir / "hostfile"

    def ip(self, host: str) -> str:
        """IPv4 address of a host, or of `root`, the machine as the hosts see it."""
        return self.layout.ip(host)

    def up(self, num_workers: int, login: bool = False, slots: int = 2, debian_hosts: bool = False) -> None:
        """Build the cluster, in place of an earlier one of that prefix, and wait for every sshd.

        Hosts are worker-0 and up, and `login`, a host to launch from (and to kill), where asked for.
        Raises ClusterError, with nothing left behind.
        """
        if not 1 <= num_workers <= MAX_WORKERS:
            raise ClusterError(f"expects 1 to {MAX_WORKERS} workers, but got {num_workers}")
        hosts = (("login",) if login else ()) + tuple(f"worker-{i}" for i in range(num_workers))
        with locked(self._lock):
            self._remove()
            try:
                self._layout = self._claim_subnet(hosts, slots, debian_hosts)
                self._adopt(self._layout)
                write_files(self._layout, self._state_dir, pwd.getpwuid(os.geteuid()).pw_name)
                network.build(self._layout)
                self._start(hosts)
            except BaseException:
                self._remove()
                raise

    def down(self) -> None:
        """Remove every process, interface, namespace and file of it; also of half a cluster, also twice."""
        with locked(self._lock):
            self._remove()
            self._lock.unlink()
        with locked(_SUBNETS_LOCK), contextlib.suppress(OSError):
            if list(STATE_BASE.iterdir()) == [_SUBNETS_LOCK]:  # no other cluster here or on its way
                _SUBNETS_LOCK.unlink()
                STATE_BASE.rmdir()

    # Faults

    def cut(self, host: str, peer: str | None = None, one_way: bool = False) -> None:
        """Drop all traffic of the host; or only what passes between it and `peer`, a host or `root`; or,
        `one_way`, only what it sends to `peer`. Nothing is refused or reset: the others hear silence."""
        if peer is None:
            network.set_link(self.layout, host, up=False)
            return
        network.set_path(self.layout, host, peer, up=False)
        if not one_way:
            network.set_path(self.layout, peer, host, up=False)

    def heal(self, host: str) -> None:
        """Undo every cut of the host, and thaw it."""
        network.set_link(self.layout, host, up=True)
        for peer in ("root", *self.hosts):
            if peer != host:
                network.set_path(self.layout, host, peer, up=True)
                network.set_path(self.layout, peer, host, up=True)
        self.thaw(host)

    def kill(self, host: str) -> None:
        """End every process of the host at once. Its link stays: peers get FIN or RST."""
        self._host(host).end()

    def crash(self, host: str) -> None:
        """Power failure: off the network first, so that neither FIN nor RST gets out, then all ended."""
        self.cut(host)
        self.kill(host)

    def boot(self, host: str) -> None:
        """Bring a host back, healed and with a fresh sshd; one that still runs is killed first."""
        self.kill(host)
        self.heal(host)
        self._start([host])

    def freeze(self, host: str) -> None:
        """Stop every process of the host. The kernel still answers for their sockets."""
        self._host(host).freeze()

    def thaw(self, host: str) -> None:
        """Let a frozen host go on."""
        self._host(host).thaw()

    def restore(self) -> None:
        """Undo all faults, and end all processes that are not the hosts' own."""
        for name in self.hosts:
            self.heal(name)
            if self._host(name).init() is None or not self._host(name).answers():
                self.boot(name)
        if not end_all(lambda: [found.process for found in self.user_procs()]):
            raise ClusterError(f"processes survive SIGKILL: {self.user_procs()}")

    # Running things

    def user_procs(self, host: str | None = None) -> list[HostProcess]:
        """What runs on the host, or on all, besides init and the SSH server's own processes."""
        names = self.hosts if host is None else (host,)
        return [HostProcess(name, process) for name in names for process in self._host(name).user_processes()]

    def exec_argv(self, host: str, argv: Sequence[str]) -> list[str]:
        """The argv that runs `argv` on the host without SSH, in the caller's folder.

        Its process here is nsenter, which passes on no signal: what it runs is in `user_procs`.
        """
        return self._host(host).enter_argv(argv)

    def run_argv(self, argv: Sequence[str]) -> list[str]:
        """The argv that runs `argv` on the machine itself, where the hosts' plain names work for everything.

        It sees the cluster's /etc/hosts and ssh_config at their usual places; no other process does.
        """
        script = (
            'mount --bind "$1/hosts" /etc/hosts; '
            '[ -f /etc/ssh/ssh_config ] && mount --bind "$1/ssh_config" /etc/ssh/ssh_config; shift; exec "$@"'
        )
        return [tool("unshare"), "--mount", "sh", "-c", script, "sh", str(self._state_dir), *argv]

    def _host(self, name: str) -> Host:
        self.layout.ip(name)  # refuses unknown names
        return self._hosts[name]

    def _adopt(self, layout: Layout) -> None:
        self._hosts = {
            name: Host(name, layout.ip(name), layout.netns(name), self._state_dir) for name in layout.hosts
        }

    def _claim_subnet(self, hosts: tuple[str, ...], slots: int, debian_hosts: bool) -> Layout:
        with locked(_SUBNETS_LOCK):
            layouts = [read_layout(path) for path in STATE_BASE.glob("*/layout.json")]
            used = {layout.subnet for layout in layouts if layout is not None}
            routes = run([tool("ip"), "-4", "route"]).stdout
            used |= {int(subnet) for subnet in re.findall(r"\b198\.18\.(\d+)\.", routes)}
            subnet = next((subnet for subnet in range(1, 255) if subnet not in used), None)
            if subnet is None:
                raise ClusterError("no free subnet in 198.18.0.0/16")
            layout = Layout(self.prefix, subnet, hosts, slots, debian_hosts)
            self._state_dir.mkdir()
            layout.write(self._state_dir / "layout.json")
        return layout

    def _start(self, names: Sequence[str]) -> None:
        hosts = [self._host(name) for name in names]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(Host.start, hosts))
        for host in hosts:
            host.wait_ready()

    def _remove(self) -> None:
        for host in self._hosts.values():
            host.end()
        if not end_all(self._leftovers):
            raise ClusterError(f"processes survive SIGKILL: {self._leftovers()}")
        network.remove(self.prefix)
        shutil.rmtree(self._state_dir, ignore_errors=True)
        self._layout = None
        self._hosts = {}

    def _leftovers(self) -> list[Process]:
        inside = [process for netns in network.netns_of(self.prefix) for process in in_netns(netns)]
        # An sshd whose namespace has lost its name still names its settings.
        own_settings = f"-f {self._state_dir}/"
        return inside + [
            p for p in all_processes() if p.name.startswith("sshd") and own_settings in p.command
        ]


def clusters() -> list[Cluster]:
    """Every cluster that has files on this machine."""
    return [Cluster(path.parent.name) for path in sorted(STATE_BASE.glob("*/layout.json"))]
