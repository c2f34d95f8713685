"""Judge names, ways between the hosts, and their clocks. Pure."""

from __future__ import annotations

import ipaddress
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from dslaunch.hostfile import fold_names
from dslaunch.launcher.check.host_answer import Asked, Finding, Severity, Told
from dslaunch.launcher.check.majority import usual
from dslaunch.launcher.survey.records import ANY_PORT, MASTER_PORT, NEXT_HOST, Call, Interface

_SKEW_S = 0.1
_UNCERTAIN_S = 0.5
"""Of a comparison in which the way was not measured."""
_MAX_WAY_S = 5.0


def judge_ways(asked: Asked, told: Sequence[Told]) -> Iterator[Finding]:
    """Whether every host reaches the first, and the next."""
    if not told:
        return
    first = told[0]
    closed = dict(first.answer.network.closed)
    if asked.has_named_port and first.ready.port_in_use:
        yield _error(
            first, f"port {asked.port} is in use", "choose another: --master_port, or end who holds it"
        )
    if MASTER_PORT in closed:
        yield _error(
            first,
            f"cannot listen at port {asked.port}: {closed[MASTER_PORT]}",
            "choose another: --master_port",
        )
    failed: dict[str, list[Told]] = {}
    for one in told[1:]:
        failed.setdefault(_failure(one, closed), []).append(one)
    failed.pop("", None)
    address = asked.master_addr or ", ".join(first.ready.addresses) or "no address"
    for kind, callers in failed.items():
        yield from _blame(asked, first, callers, len(told) - 1, kind, address)
    for one, following in pairwise(told):
        call = _call(one, NEXT_HOST)
        if call is not None and call.error and NEXT_HOST not in dict(following.answer.network.closed):
            yield _error(
                one,
                f"does not reach {following.host} ({', '.join(following.ready.addresses)}): {call.error}",
                "look for a firewall or a missing route between the two",
            )


_FIREWALL = "look for a firewall or a missing route; or name an address that all reach: --master_addr"


def _failure(one: Told, closed: Mapping[str, str]) -> str:
    """Which of the two calls failed: `both`, `master`, `any`, or "" for none."""
    is_failed = {
        purpose: bool(call and call.error and purpose not in closed)
        for purpose in (MASTER_PORT, ANY_PORT)
        for call in [_call(one, purpose)]
    }
    if is_failed[ANY_PORT] and (is_failed[MASTER_PORT] or _call(one, MASTER_PORT) is None):
        return "both"
    return "master" if is_failed[MASTER_PORT] else "any" if is_failed[ANY_PORT] else ""


def _blame(
    asked: Asked, first: Told, callers: Sequence[Told], num_callers: int, kind: str, address: str
) -> Iterator[Finding]:
    """Where more than half do not reach the first host, it is at fault, else those who do not."""
    purpose = MASTER_PORT if kind == "master" else ANY_PORT
    call = _call(callers[0], purpose)
    assert call is not None
    port = {
        "both": "",
        "master": f" at port {asked.port}",
        "any": f" at port {call.port}, which the system chose",
    }[kind]
    remedy = {
        "both": _FIREWALL,
        "master": f"open port {asked.port} in the firewall, or choose another: --master_port",
        "any": "open all ports between the hosts: NCCL and gloo connect at those that the system gives them",
    }[kind]
    if num_callers > 1 and len(callers) > num_callers / 2:
        who = fold_names(one.host for one in callers)
        yield _error(first, f"is not reached by {who} ({address}){port}: {call.error}", remedy)
        return
    for one in callers:
        error = _call(one, purpose)
        yield _error(one, f"does not reach {first.host} ({address}){port}: {error and error.error}", remedy)


def judge_names(asked: Asked, told: Sequence[Told]) -> Iterator[Finding]:
    """Names that lead to the host itself, and interfaces that are not there."""
    for one in told:
        for variable, value in one.answer.network.missing_interfaces:
            names = ", ".join(interface.name for interface in one.answer.network.interfaces)
            yield _error(
                one,
                f"{variable}={value} names no interface of this host",
                f"it has {names}; correct or unset it",
            )
    if len(told) < 2:
        return
    first = told[0]
    name = asked.master_addr or first.host
    interface = common_interface(told)
    for one in told:
        network = one.answer.network
        if one is not first and _is_loopback(network.master_address):
            yield Finding(
                Severity.ERROR if asked.master_addr else Severity.WARNING,
                (one.host,),
                f"resolves {name} to {network.master_address}, which is itself",
                f"in its /etc/hosts, give {name} the address that others reach it by",
            )
        elif asked.master_addr and not network.master_address and "network" not in one.answer.unknown:
            yield _error(
                one, f"cannot resolve --master_addr {name}", "name an address, or add it to /etc/hosts"
            )
        if _is_loopback(network.own_address):
            yield Finding(
                Severity.NOTE if interface else Severity.WARNING,
                (one.host,),
                f"resolves its own name to {network.own_address}",
                f"gloo and NCCL are told to use {interface}; for other programs, correct its /etc/hosts"
                if interface
                else "gloo would listen there: set GLOO_SOCKET_IFNAME, or correct its /etc/hosts",
            )


def common_interface(told: Sequence[Told]) -> str:
    """The one interface that all hosts use among each other; "" where there is none."""
    names = {interface.name for interface in _used(told).values()}
    return names.pop() if len(names) == 1 and len(_used(told)) == len(told) else ""


def judge_interfaces(told: Sequence[Told]) -> Iterator[Finding]:
    """MTU and speed of the interfaces between the hosts, where they differ."""
    used = _used(told)
    mtu = usual({host: interface.mtu for host, interface in used.items()})
    speed = usual({host: interface.speed_mbps for host, interface in used.items()})
    for one in told:
        interface = used.get(one.host)
        if interface is None:
            continue
        if mtu is not None and interface.mtu != mtu:
            yield _warning(
                one,
                f"MTU of {interface.name} is {interface.mtu}, most hosts have {mtu}",
                f"ip link set {interface.name} mtu {mtu}: large messages may hang, small ones pass",
            )
        if speed is not None and 0 <= interface.speed_mbps < speed:
            yield _warning(
                one,
                f"{interface.name} runs at {interface.speed_mbps} Mb/s, on most hosts at {speed}",
                "look at its cable, its adapter and the switch: ethtool",
            )


def _used(told: Sequence[Told]) -> Mapping[str, Interface]:
    """By host, the interface towards the first host; of that one, the interface that others reach."""
    used: dict[str, Interface] = {}
    reached = ""
    for one in told[1:]:
        calls = one.answer.network.calls
        call = next((call for call in calls if call.address and call.purpose != NEXT_HOST), None)
        if call is not None:
            reached = reached or call.address
            _note(used, one, {call.interface})
    if reached:
        _note(used, told[0], {reached})
    return used


def _note(used: dict[str, Interface], one: Told, names: set[str]) -> None:
    """The host's interface that bears one of these names or addresses."""
    for interface in one.answer.network.interfaces:
        if interface.name in names or interface.address in names:
            used[one.host] = interface


def judge_clocks(told: Sequence[Told]) -> Iterator[Finding]:
    """Clocks that differ from the middle one; this machine's own counts as one of them."""
    if not told:
        return
    ahead_s = {one.host: -one.clock.offset_ns / 1e9 for one in told}
    middle_s = statistics.median_low([0.0, *ahead_s.values()])
    for one in told:
        way_s = one.clock.way_ns / 1e9
        uncertain_s = way_s / 2 if way_s < _MAX_WAY_S else _UNCERTAIN_S
        skew_s = ahead_s[one.host] - middle_s
        if abs(skew_s) > _SKEW_S + uncertain_s:
            yield _warning(
                one,
                f"its clock is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} the others",
                "start an NTP client on it: timedatectl set-ntp true; chronyc makestep",
            )


def _call(one: Told, purpose: str) -> Call | None:
    return next((call for call in one.answer.network.calls if call.purpose == purpose), None)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _error(one: Told, what: str, remedy: str) -> Finding:
    return Finding(Severity.ERROR, (one.host,), what, remedy)


def _warning(one: Told, what: str, remedy: str) -> Finding:
    return Finding(Severity.WARNING, (one.host,), what, remedy)
