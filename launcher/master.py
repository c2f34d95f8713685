"""Where the ranks meet: what is assumed before the hosts answer, and what is settled when they have."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from dslaunch.launcher.plan import Master, Resolved
from dslaunch.launcher.rank_env import DEFAULT_MASTER_PORT
from dslaunch.launcher.wire import Reached, Ready

_LOOPBACK = "127.0.0.1"
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class MasterError(Exception):
    """There is no place to meet. `hint` is the next action for the user."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Meeting:
    """What is settled: the master, and the interface over which every host reaches it ("" if uncertain)."""

    master: Master
    interface: str

    @property
    def network(self) -> Mapping[str, str]:
        """Variables for hosts that have not set them."""
        return dict.fromkeys(_INTERFACE_VARIABLES, self.interface) if self.interface else {}


def assumed_master(resolved: Resolved) -> Master:
    """Without asking anyone: the user's word, else this machine for one node, else the first host's name."""
    request = resolved.request
    first = resolved.topology.hosts[0].name
    addr = request.master_addr or (_LOOPBACK if len(resolved.topology) == 1 else first)
    return Master(addr, request.master_port or DEFAULT_MASTER_PORT)


def settle(resolved: Resolved, ready: Mapping[int, Ready], reached: Mapping[int, Reached]) -> Meeting:
    """With the launched hosts' answers, by node rank. Raises MasterError.

    The address is node 0's first that every other host has reached; where none was asked (`reached` is
    empty), the first that can be meant by others. The port is the default where free, else one that node 0
    had free, unless the user named it.
    """
    assumed = assumed_master(resolved)
    first = ready.get(0)
    if first is None:  # a pod other than node 0: the user named the master
        return Meeting(assumed, "")
    addr = assumed.addr
    if resolved.request.master_addr is None and len(resolved.topology) > 1:
        addr = _reached_address(resolved, first, reached) if reached else _meant_address(ready)
    interface = _common_interface(addr, first, reached)
    if not first.port_in_use and (resolved.attempt == 0 or resolved.request.master_port is not None):
        return Meeting(Master(addr, assumed.port), interface)
    others_count_on_it = resolved.own_node is not None and len(resolved.topology) > 1
    if resolved.request.master_port is not None or others_count_on_it:
        raise MasterError(
            f"port {assumed.port} is in use", "choose another with --master_port, or end who holds it"
        )
    return Meeting(Master(addr, first.free_port), interface)


def _reached_address(resolved: Resolved, first: Ready, reached: Mapping[int, Reached]) -> str:
    for address in first.addresses:
        if all(address in answer.addresses for answer in reached.values()):
            return address
    own = ", ".join(
        f"{address} ({interface or 'unknown interface'})"
        for address, interface in zip(first.addresses, first.interfaces, strict=True)
    )
    cut_off = [resolved.topology.hosts[i].name for i, answer in reached.items() if not answer.addresses]
    whom = f"{cut_off[0]} reaches none" if cut_off else "every host reaches another one"
    raise MasterError(
        f"no address that all other hosts reach: {own or 'it has none'}; {whom}",
        "look for a firewall between the hosts, or name an address with --master_addr",
    )


def _meant_address(ready: Mapping[int, Ready]) -> str:
    """A loopback address means something else on every host, unless all of them are this machine."""
    own = ready[0].addresses
    everyone_is_here = all(_is_loopback(answer.addresses[0]) for answer in ready.values() if answer.addresses)
    usable = [address for address in own if everyone_is_here or not _is_loopback(address)]
    if not usable:
        raise MasterError(
            f"no address that the other hosts can mean (its own: {', '.join(own) or 'none'})",
            "name one with --master_addr",
        )
    return usable[0]


def _common_interface(addr: str, first: Ready, reached: Mapping[int, Reached]) -> str:
    """The one interface that all hosts use towards the master; "" where there is none, or loopback."""
    own = dict(zip(first.addresses, first.interfaces, strict=True)).get(addr, "")
    others = {
        dict(zip(answer.addresses, answer.interfaces, strict=True)).get(addr, "")
        for answer in reached.values()
    }
    certain = bool(reached) and others == {own} and not _is_loopback(addr)
    return own if certain else ""


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False  # a name
