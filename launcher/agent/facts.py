"""What the agent tells about its host before it is given a plan."""

from __future__ import annotations

import os
import platform
import socket

from dslaunch.launcher.wire import Ready


def gather(port: int) -> Ready:
    """This host's name, addresses and ports; `port` is the one the launcher means to use."""
    return Ready(
        hostname=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        addresses=_addresses(),
        port_in_use=_in_use(port),
        free_port=_free_port(),
    )


def _addresses() -> tuple[str, ...]:
    """The address the launcher's SSH connection came to, then the one of the default route."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    found = [connection[2].partition("%")[0]] if len(connection) == 4 else []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # TEST-NET-3 (RFC 5737): connecting a datagram socket asks the routing table and sends nothing.
            probe.connect(("203.0.113.1", 9))
            found.append(probe.getsockname()[0])
        except OSError:
            pass  # no default route: the SSH address, if any, has to do
    return tuple(dict.fromkeys(found))


def _in_use(port: int) -> bool:
    """Whether someone listens on the port: torch's store would fail to bind it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return True
    return False


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
