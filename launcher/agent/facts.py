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


class PortClaim:
    """A master port that a job on this host is going to use: its rank 0 binds it seconds later.

    An abstract socket (unix(7)): seen by every user, gone with the process.
    """

    def __init__(self, port: int) -> None:
        """Raises OSError where another job has it."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(self._name(port))
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    @staticmethod
    def exists(port: int) -> bool:
        """Whether some job of this host has it. Takes nothing, so that several may ask at once."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            try:
                asking.connect(PortClaim._name(port))
            except OSError:
                return False
        return True

    @staticmethod
    def _name(port: int) -> str:
        return f"\0dslaunch-master-{port}"


class PortClaims:
    """What an agent holds before it knows where its job's ranks meet: jobs that start together differ then.

    Agents of one job on one machine do not know each other: a port that is fixed is not held, for
    node 0 must get it.
    """

    def __init__(self, port: int, *, is_fixed: bool) -> None:
        """`port` is the one the launcher means to use; `is_fixed`: it cannot be another."""
        self._held: dict[int, PortClaim] = {}
        if not is_fixed and not _in_use(port):
            self._hold(port)

    def has(self, port: int) -> bool:
        return port in self._held

    def free_port(self) -> int:
        """One that nobody listens on and no other job holds."""
        port = _free_port()
        while not self._hold(port):
            port = _free_port()
        return port

    def settle(self, port: int | None) -> None:
        """The job meets there; the others are let go. None where it meets on another host. Raises OSError."""
        if port is not None and port not in self._held:
            self._held[port] = PortClaim(port)
        for other in self._held.keys() - {port}:
            self._held.pop(other).close()

    def _hold(self, port: int) -> bool:
        try:
            self._held[port] = PortClaim(port)
        except OSError:
            return False
        return True


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


def gather(port: int, probe_port: int, claims: PortClaims) -> Ready:
    """This host's name, addresses and ports; `port` is the one the launcher means to use.

    What is told to be free is held for this job until it has its plan.
    """
    own = interfaces()
    addresses = _addresses(own)
    return Ready(
        hostname=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        addresses=addresses,
        interfaces=tuple(own.get(address, "") for address in addresses),
        port_in_use=not claims.has(port) and _in_use(port),
        free_port=claims.free_port(),
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


def _in_use(port: int) -> bool:
    """Whether someone listens on the port, or another job is about to: torch could not bind it.

    With SO_REUSEADDR only a listener is in the way, not another agent that asks the same just now.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return PortClaim.exists(port)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
