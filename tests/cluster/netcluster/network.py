"""The cluster's wires: one bridge in a namespace of its own, a veth pair to the machine and to each host."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

from netcluster.command import ip_batch, run, tool
from netcluster.errors import ClusterError
from netcluster.layout import Layout, is_netns_of, root_interface
from netcluster.process import NETNS_DIR

_NO_ONE = "02:de:ad:00:00:00"


def netns_of(prefix: str) -> list[str]:
    """The network namespaces of a cluster that exist, found by name, so that it works after any crash."""
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(NETNS_DIR) if is_netns_of(name, prefix))
    return []


def build(layout: Layout) -> None:
    """Make namespaces, bridge and wires. The hosts reach root and each other, and nothing else."""
    switch = layout.netns("switch")
    root = layout.root_interface
    ip_batch(
        [f"netns add {switch}"]
        + [f"netns add {layout.netns(host)}" for host in layout.hosts]
        + [
            f"link add {root} address {layout.mac('root')} type veth peer name root netns {switch}",
            f"link set {root} addrgenmode none",
            f"addr add {layout.ip('root')}/24 dev {root}",
            f"link set {root} up",
        ]
        + [_know(layout, host, root) for host in layout.hosts]
    )
    lines = [
        "link set lo up",
        "link add br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
        "link set br0 up",
        "link set root master br0 up",
    ]
    for host in layout.hosts:
        lines.append(
            f"link add {host} type veth peer name eth0 address {layout.mac(host)} netns {layout.netns(host)}"
        )
        lines.append(f"link set {host} master br0 up")
    ip_batch(lines, netns=switch)
    _silence_switch(switch)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda host: _wire(layout, host), layout.hosts))


def remove(prefix: str) -> None:
    """Remove every interface and namespace of the cluster; what is not there is no error.

    Raises ClusterError where a namespace stays.
    """
    interface = root_interface(prefix)
    if os.path.exists(f"/sys/class/net/{interface}"):
        run([tool("ip"), "link", "del", interface], check=False)
    for name in netns_of(prefix):
        done = run([tool("ip"), "netns", "del", name], check=False)
        with contextlib.suppress(OSError):
            os.unlink(NETNS_DIR / name)  # a mount point left over from a killed `ip netns add`
        if name in netns_of(prefix):
            raise ClusterError(f"cannot remove namespace {name}: {done.stderr.strip()}")


def set_link(layout: Layout, host: str, up: bool) -> None:
    """Let the host's traffic pass or drop all of it; its own interface keeps its carrier either way."""
    layout.ip(host)  # refuses unknown names
    state = "3" if up else "0"  # BR_STATE_FORWARDING, BR_STATE_DISABLED
    inside = [tool("ip"), "netns", "exec", layout.netns("switch")]
    run([*inside, tool("bridge"), "link", "set", "dev", host, "state", state])


def set_path(layout: Layout, source: str, destination: str, up: bool) -> None:
    """Let frames pass from `source` to `destination` (a host or `root`), or send them to no one."""
    mac = layout.mac(destination) if up else _NO_ONE
    interface = layout.root_interface if source == "root" else "eth0"
    ip_batch(
        [f"neigh replace {layout.ip(destination)} lladdr {mac} dev {interface} nud permanent"],
        netns=None if source == "root" else layout.netns(source),
    )


def _know(layout: Layout, host: str, interface: str) -> str:
    # Permanent neighbours: a cut host is then silent, as across a router, where ARP would report it.
    return f"neigh replace {layout.ip(host)} lladdr {layout.mac(host)} dev {interface} nud permanent"


def _wire(layout: Layout, host: str) -> None:
    peers = [peer for peer in ("root", *layout.hosts) if peer != host]
    ip_batch(
        ["link set lo up", f"addr add {layout.ip(host)}/24 dev eth0", "link set eth0 up"]
        + [_know(layout, peer, "eth0") for peer in peers],
        netns=layout.netns(host),
    )


def _silence_switch(switch: str) -> None:
    """The switch carries frames only: it has no addresses of its own and answers nothing."""
    script = (
        "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 > $f; done; "
        "echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables; "
        "echo 8 > /proc/sys/net/ipv4/conf/all/arp_ignore; :"
    )
    run([tool("ip"), "netns", "exec", switch, "sh", "-c", script])
