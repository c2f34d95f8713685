"""Master ports that jobs on this host are going to use: their rank 0 binds them seconds later.

A claim is an abstract socket (unix(7)): seen by every user, gone with the processes that hold it. A job may
have several agents on a machine, and one after the other: an agent that finds a claim asks whoever holds
it, and is given a share where it is of the same job.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct

_ANSWER_S = 0.25
_NUM_ASKS = 4
"""A holder may let go between being found and being asked; one that never answers, stopped or stuck, is
another job's."""


class PortClaim:
    """One port, held by this process, and perhaps by other agents of the job."""

    def __init__(self, port: int, job_id: str) -> None:
        """Raises OSError where another job has it."""
        self._job_id = job_id.encode()
        for _ in range(_NUM_ASKS):
            found = self._take(port) or self._share(port)
            if found is not None:
                found.setblocking(False)
                self._socket = found
                return
        raise OSError(f"whoever holds port {port} does not answer")

    def _take(self, port: int) -> socket.socket | None:
        """None where somebody has it."""
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            own.bind(self.name(port))
        except OSError:
            own.close()
            return None
        return own

    def _share(self, port: int) -> socket.socket | None:
        """None where the holder is gone, or does not answer. Raises OSError where it is another job's."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.bind("")  # any name: it is to be answered
            asking.settimeout(_ANSWER_S)
            try:
                asking.connect(self.name(port))
                asking.send(self._job_id)
                _, descriptors, _, _ = socket.recv_fds(asking, 1, 1)
            except OSError:
                return None
            if not descriptors:
                raise OSError(f"another job holds port {port}")
            os.set_inheritable(descriptors[0], False)
            return socket.socket(fileno=descriptors[0])

    @property
    def fd(self) -> int:
        """Readable when another agent asks."""
        return self._socket.fileno()

    def answer(self) -> None:
        """Give a share to those of the same job who ask, and nothing to others."""
        with contextlib.suppress(OSError):  # nobody else asks; or who did has left
            while True:
                job_id, _, _, who = self._socket.recvmsg(1024)
                share = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", self.fd))
                with contextlib.suppress(ConnectionError, BlockingIOError):
                    self._socket.sendmsg([b"."], [share] if job_id == self._job_id else [], 0, who)

    def close(self) -> None:
        """Let go; those who have asked meanwhile get their answer."""
        self.answer()
        self._socket.close()

    @staticmethod
    def name(port: int) -> str:
        """Of the socket that holds it."""
        return f"\0dslaunch-master-{port}"


class PortClaims:
    """What an agent holds before it knows where its ranks meet: jobs that start together differ then."""

    def __init__(self, port: int, job_id: str, selector: selectors.BaseSelector) -> None:
        """`port` is the one the launcher means to use. `selector` calls what answers others, in its data."""
        self._job_id = job_id
        self._selector = selector
        self._held: dict[int, PortClaim] = {}
        if not _has_listener(port):
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
            self._add(port)
        for other in self._held.keys() - {port}:
            claim = self._held.pop(other)
            self._selector.unregister(claim.fd)
            claim.close()

    def _hold(self, port: int) -> bool:
        try:
            self._add(port)
        except OSError:
            return False
        return True

    def _add(self, port: int) -> None:
        claim = self._held[port] = PortClaim(port, self._job_id)
        self._selector.register(claim.fd, selectors.EVENT_READ, claim.answer)


def _has_listener(port: int) -> bool:
    """Whether torch could not bind it.

    With SO_REUSEADDR only a listener is in the way, not another agent that asks the same just now.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
