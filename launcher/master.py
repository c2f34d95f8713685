"""Where the ranks meet: what is assumed before the hosts answer, and what is settled when they have."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from dslaunch.launcher.plan import Master, Resolved
from dslaunch.launcher.rank_env import DEFAULT_MASTER_PORT
from dslaunch.launcher.wire import Ready

_LOOPBACK = "127.0.0.1"


class MasterError(Exception):
    """There is no place to meet. `hint` is the next action for the user."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def assumed_master(resolved: Resolved) -> Master:
    """Without asking anyone: the user's word, else this machine for one node, else the first host's name."""
    request = resolved.request
    first = resolved.topology.hosts[0].name
    addr = request.master_addr or (_LOOPBACK if len(resolved.topology) == 1 else first)
    return Master(addr, request.master_port or DEFAULT_MASTER_PORT)


def settled_master(resolved: Resolved, ready: Mapping[int, Ready]) -> Master:
    """With the launched hosts' answers, by node rank. Raises MasterError.

    The address is one of node 0's own: the one the launcher reached it by, unless that is a loopback
    address which the other hosts cannot mean. The port is the default where free, else one that node 0 had
    free, unless the user named it.
    """
    assumed = assumed_master(resolved)
    first = ready.get(0)
    if first is None:  # a pod other than node 0: the user named the master
        return assumed
    addr = assumed.addr
    if resolved.request.master_addr is None and len(resolved.topology) > 1:
        addr = _address(resolved, ready)
    if not first.port_in_use:
        return Master(addr, assumed.port)
    if resolved.request.master_port is not None or resolved.own_node is not None:
        raise MasterError(
            f"port {assumed.port} is in use", "choose another with --master_port, or end who holds it"
        )
    return Master(addr, first.free_port)


def _address(resolved: Resolved, ready: Mapping[int, Ready]) -> str:
    own = ready[0].addresses
    everyone_is_here = all(_is_loopback(answer.addresses[0]) for answer in ready.values() if answer.addresses)
    usable = [address for address in own if everyone_is_here or not _is_loopback(address)]
    if not usable:
        shown = ", ".join(own) or "none"
        raise MasterError(
            f"no address that the other hosts can reach (its own: {shown})", "name one with --master_addr"
        )
    return usable[0]


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
