"""What the agent tells about its host before it is given a plan."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import selectors
import socket
import struct
import time

from dslaunch.launcher.wire import Reached, Ready

_SIOCGIFADDR = 0x8915
_PROBE_TIMEOUT_S = 2.0
_BANNER = b"dslaunch "


class ProbeServer:
    """Answers other agents that ask whether they reach this host, with a banner that names its port.

    A host may have another's address (docker0 is 172.17.0.1 everywhere): whoever asks must not take itself,
    or anyone else who listens, for node 0.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0), backlog=1024)
        self._socket.setblocking(False)
        self.fd = self._socket.fileno()
        self.port: int = self._socket.getsockname()[1]

    def answer(self) -> None:
        """Answer who has come."""
        try:
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    connection.sendall(_BANNER + str(self.port).encode())
        except OSError:
            return  # nobody else waits, or the last one has left

    def close(self) -> None:
        self._socket.close()


def gather(*, port_in_use: bool, free_port: int, probe_port: int) -> Ready:
    """This host's name and addresses, with its ports."""
    own = interfaces()
    addresses = _addresses(own)
    return Ready(
        hostname=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        addresses=addresses,
        interfaces=tuple(own.get(address, "") for address in addresses),
        port_in_use=port_in_use,
        free_port=free_port,
        probe_port=probe_port,
    )


def probe(addresses: tuple[str, ...], port: int) -> Reached:
    """Which of node 0's addresses answer here, and through which interface this host goes there."""
    own = interfaces()
    answering = _answering(addresses, port)
    reached = {address: own.get(source_address(address), "") for address in addresses if address in answering}
    return Reached(tuple(reached), tuple(reached.values()))


def _answering(addresses: tuple[str, ...], port: int) -> set[str]:
    """Those that say the banner of that port in time, asked all at once."""
    found = set()
    deadline = time.monotonic() + _PROBE_TIMEOUT_S
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as sockets:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            asked = sockets.enter_context(socket.socket(family, socket.SOCK_STREAM))
            asked.setblocking(False)
            asked.connect_ex((address, port))
            selector.register(asked, selectors.EVENT_READ, (asked, address))
        while selector.get_map() and (rest_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(rest_s):
                asked, address = key.data
                selector.unregister(asked)
                with contextlib.suppress(OSError):
                    if asked.recv(64) == _BANNER + str(port).encode():
                        found.add(address)
    return found


def interfaces() -> dict[str, str]:
    """IPv4 addresses of this host, with the names of their interfaces (netdevice(7))."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no address
            found[socket.inet_ntoa(answer[20:24])] = name
    return found


def _addresses(interfaces: dict[str, str]) -> tuple[str, ...]:
    """The address the launcher's SSH connection came to, the one of the default route, then the others."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    found = [connection[2].partition("%")[0]] if len(connection) == 4 else []
    route = source_address("203.0.113.1")  # TEST-NET-3 (RFC 5737): nothing is sent there
    others = [route] if route else []
    others += [address for address in interfaces if not address.startswith("127.")]
    return tuple(dict.fromkeys(found + others))


def source_address(address: str) -> str:
    """This host's address towards another, by its routing table; "" where there is no route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # a datagram socket sends nothing at this
        except OSError:
            return ""
        source: str = probe.getsockname()[0]
        return source
