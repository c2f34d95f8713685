"""The cluster by hand: `PYTHONPATH=tests/cluster python -m netcluster up 3`, then `ssh -F ... worker-0`."""

from __future__ import annotations

import argparse
import os
import sys

from netcluster.cluster import Cluster, clusters
from netcluster.errors import ClusterError


def main() -> int:
    arguments = _parser().parse_args()
    try:
        return _obey(Cluster(arguments.prefix), arguments)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m netcluster", description=__doc__)
    parser.add_argument("-p", "--prefix", default="hand", help="which of several clusters (default: hand)")
    orders = parser.add_subparsers(dest="order", required=True)
    up = orders.add_parser("up", help="build it, in place of an earlier one")
    up.add_argument("num_workers", type=int)
    up.add_argument("--login", action="store_true", help="one more host, to launch from")
    up.add_argument("--slots", type=int, default=2, help="slots= in the hostfile")
    up.add_argument("--debian-hosts", action="store_true", help="own name is 127.0.1.1 in /etc/hosts")
    orders.add_parser("down", help="remove all of it").add_argument("--all", action="store_true")
    orders.add_parser("ps", help="processes on a host, or on all").add_argument("host", nargs="?")
    cut = orders.add_parser("cut", help="drop a host's traffic")
    cut.add_argument("host")
    cut.add_argument("--peer", help="only what passes between it and this host, or root")
    cut.add_argument("--one-way", action="store_true", help="only from host to peer")
    for order, text in (
        ("heal", "undo cut and freeze"),
        ("crash", "power failure: silence, all ended"),
        ("kill", "all its processes ended, its link stays"),
        ("boot", "bring it back"),
        ("freeze", "stop its processes"),
        ("thaw", "let them go on"),
    ):
        orders.add_parser(order, help=text).add_argument("host")
    execute = orders.add_parser("exec", help="run a command on a host, without SSH")
    execute.add_argument("host")
    execute.add_argument("argv", nargs=argparse.REMAINDER)
    run = orders.add_parser("run", help="run a command here, where the hosts' names work")
    run.add_argument("argv", nargs=argparse.REMAINDER)
    return parser


def _obey(cluster: Cluster, arguments: argparse.Namespace) -> int:
    match arguments.order:
        case "up":
            cluster.up(arguments.num_workers, arguments.login, arguments.slots, arguments.debian_hosts)
            for host in cluster.hosts:
                print(f"{host:12} {cluster.ip(host):16} ssh -F {cluster.ssh_config} {host}")
            print(f"hostfile: {cluster.hostfile}")
        case "down":
            for each in [*clusters(), cluster] if arguments.all else [cluster]:
                each.down()
        case "ps":
            for found in cluster.user_procs(arguments.host):
                process = found.process
                print(f"{found.host:12} {process.pid:>8} {process.state} {process.command[:160]}")
        case "cut":
            cluster.cut(arguments.host, arguments.peer, arguments.one_way)
        case "exec":
            _become(cluster.exec_argv(arguments.host, arguments.argv or ["sh"]))
        case "run":
            _become(cluster.run_argv(arguments.argv or ["sh"]))
        case "heal" | "crash" | "kill" | "boot" | "freeze" | "thaw" as fault:
            getattr(cluster, fault)(arguments.host)
    return 0


def _become(argv: list[str]) -> None:
    sys.stdout.flush()
    os.execv(argv[0], argv)


if __name__ == "__main__":
    sys.exit(main())
