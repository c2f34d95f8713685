"""Where a host is reached: `host`, `user@host`, `host:port`, `[ipv6]:port`, bare IPv6."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from dslaunch.hostfile.errors import TopologyError, quoted

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_SCOPE = re.compile(r"[A-Za-z0-9._-]+")
_BRACKETED = re.compile(r"\[([^\[\]]*)\](?::(.*))?", re.DOTALL)
_DOTTED_QUAD = re.compile(r"\d+(?:\.\d+){3}", re.ASCII)
_MAX_NAME_CHARS = 253  # RFC 1035, 2.3.4, less the length bytes at both ends

_NAME_HINT = "a host name holds letters, digits, '.', '-' and '_', and does not begin with '-' or '.'"
_PORT_HINT = "host:port takes an SSH port from 1 to 65535; slots are written apart, as in: worker-1 slots=4"
_IPV6_HINT = "write an IPv6 address bare, ::1, or with a port, [::1]:22"


@dataclass(frozen=True, slots=True)
class Address:
    """A host's name as SSH is given it, and what the hostfile adds to it."""

    name: str
    user: str | None = None
    port: int | None = None


def parse_address(text: str) -> Address:
    """The address `text` spells, IPv6 in its shortest form.

    Raises TopologyError for what cannot be a host, above all for words that ssh would take for an option
    or a shell would take for syntax.
    """
    user, at, place = text.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise TopologyError(
            f"{quoted(user)} is not a user name",
            "user@host takes a user of letters, digits, '.', '-' and '_'; or leave the user to ~/.ssh/config",
        )
    name, port = _split_port(place)
    return Address(name, user=user if at else None, port=port)


def parse_name(text: str) -> str:
    """The host name or IPv6 address `text` spells, without user or port. Raises TopologyError."""
    if text.startswith("[") and text.endswith("]"):
        return _ipv6(text[1:-1])
    if not text:
        raise TopologyError("empty host name", _NAME_HINT)
    if text.startswith("-"):
        raise TopologyError(f"host {quoted(text)} looks like an option", _NAME_HINT)
    if "," in text:
        raise TopologyError(
            f"several hosts in {quoted(text)}", "one host a line; or a range: worker-[0-3,7] slots=4"
        )
    if "[" in text or "]" in text:
        raise TopologyError(
            f"unmatched bracket in {quoted(text)}", "a range reads worker-[0-3,7]; IPv6 reads [::1]"
        )
    if not _NAME.fullmatch(text):
        odd = next((c for c in text if not _NAME.fullmatch("a" + c)), text[0])
        raise TopologyError(f"host name {quoted(text)} holds {quoted(odd)}", _NAME_HINT)
    if len(text) > _MAX_NAME_CHARS:
        raise TopologyError(f"host name of {len(text)} characters", f"at most {_MAX_NAME_CHARS} are possible")
    if _DOTTED_QUAD.fullmatch(text):
        try:
            ipaddress.IPv4Address(text)
        except ValueError:
            raise TopologyError(
                f"{quoted(text)} is not an IPv4 address",
                "write four numbers from 0 to 255, without leading zeros",
            ) from None
    return text


def _split_port(place: str) -> tuple[str, int | None]:
    if match := _BRACKETED.fullmatch(place):
        return _ipv6(match[1]), None if match[2] is None else _port(match[2])
    if place.count(":") > 1:
        return _ipv6(place), None
    name, colon, port = place.partition(":")
    return parse_name(name), _port(port) if colon else None


def _ipv6(text: str) -> str:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise TopologyError(f"{quoted(text)} is not an IPv6 address", _IPV6_HINT) from None
    if address.scope_id is not None and not _SCOPE.fullmatch(address.scope_id):
        raise TopologyError(f"{quoted(text)} is not an IPv6 address: odd interface name", _IPV6_HINT)
    return str(address)


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise TopologyError(f"{quoted(text)} is not a port", _PORT_HINT)
    return int(text)
