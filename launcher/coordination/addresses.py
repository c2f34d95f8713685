"""Whose an address is, and how to get to it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import TypeVar

_CONNECT_TIMEOUT_S = 3.0
_ProtocolT = TypeVar("_ProtocolT", bound=asyncio.Protocol)
_SockAddr = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


def is_own_literal(text: str) -> bool:
    """It is an address, no name, and this machine has it."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return _can_bind(family, (text, 0))


async def is_own(address: str) -> bool:
    """Whether a name or an address means this machine and no other."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return bool(found) and all(_can_bind(family, place) for family, _, _, _, place in found)


def _can_bind(family: int, place: _SockAddr) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind(place)
    except OSError:
        return False
    return True


def explained(error: Exception) -> str:
    """Why it failed, without numbers and addresses."""
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


async def connect(address: str, port: int, protocol: Callable[[], _ProtocolT]) -> _ProtocolT:
    """Try each address that the name has. Raises OSError."""
    loop = asyncio.get_running_loop()
    failure = OSError("it has no address")
    for family, kind, number, _, place in await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM):
        with contextlib.ExitStack() as stack:
            try:
                sock = stack.enter_context(socket.socket(family, kind, number))
                sock.setblocking(False)
                await asyncio.wait_for(loop.sock_connect(sock, place), _CONNECT_TIMEOUT_S)
                if sock.getsockname() == sock.getpeername():
                    # nobody listens, and the kernel gave the port that was called to the caller itself
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "it called itself")
                _, made = await loop.create_connection(protocol, sock=sock)
            except asyncio.TimeoutError:
                failure = OSError(f"no answer within {_CONNECT_TIMEOUT_S:g} s")
            except OSError as error:
                failure = error
            else:
                stack.pop_all()
                return made
    raise failure
