"""Notice that the launcher is cut off where no heartbeat can come down: by the agent's own SSH connection.

The agent's heartbeats go up through sshd. While the launcher's machine acknowledges them, the kernel has
nothing left to resend on that connection; when the network is cut, it has. /proc/net/tcp tells (proc(5)).
"""

from __future__ import annotations

import os
import socket

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")


def is_resending(connection: str, tables: tuple[str, ...] = _TABLES) -> bool:
    """Whether what was sent over an SSH connection waits unacknowledged, after at least one try again.

    `connection` is `SSH_CONNECTION`: client address and port, server address and port. A connection that is
    not found is not known to be cut: where sshd has closed it, stdin has ended as well.
    """
    words = connection.split()
    if len(words) != 4:
        return False
    client, server = _endpoints(words[0], words[1]), _endpoints(words[2], words[3])
    for table in filter(os.path.exists, tables):
        with open(table) as lines:
            for fields in map(str.split, lines):
                if fields[1] in server and fields[2] in client:
                    return int(fields[4].partition(":")[0], 16) > 0 and int(fields[6], 16) > 0
    return False


def _endpoints(address: str, port: str) -> set[str]:
    """How the kernel writes an endpoint: words of four bytes in its own order; IPv4 also within IPv6."""
    plain = address.partition("%")[0]
    hex_port = f"{int(port):04X}"
    if ":" in plain:
        return {f"{_words(socket.inet_pton(socket.AF_INET6, plain))}:{hex_port}"}
    four = socket.inet_aton(plain)
    mapped = bytes(10) + b"\xff\xff" + four
    return {f"{_words(four)}:{hex_port}", f"{_words(mapped)}:{hex_port}"}


def _words(data: bytes) -> str:
    words = (data[i : i + 4] for i in range(0, len(data), 4))
    return "".join(f"{int.from_bytes(word, 'little'):08X}" for word in words)
