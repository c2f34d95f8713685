"""Names, interfaces, and whether other hosts are reached from here."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time

from dslaunch.launcher.agent.facts import interfaces, source_address
from dslaunch.launcher.survey.records import Call, Interface, Network, Request

_CALL_S = 2.0
"""How long a way may take."""
_SPARE_S = 2.0
"""Of the request's time, who refuses is called again until so much is left: its door may open late."""
_REFUSED = os.strerror(errno.ECONNREFUSED)
_RETRY_S = 0.02
_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class Doors:
    """Ports that are open for other hosts to call, each until all that are expected have come."""

    def __init__(self, request: Request) -> None:
        self.closed: list[tuple[str, str]] = []
        self._threads: list[threading.Thread] = []
        self._until = time.monotonic() + 2 * request.limit_s  # others may start later, and have as long
        for purpose, port, num_visitors in request.doors:
            try:
                listening = _listen(port)
            except OSError as error:
                self.closed.append((purpose, error.strerror or str(error)))
                continue
            listen = (listening, _greeting(purpose), num_visitors)
            self._threads.append(threading.Thread(target=self._serve, args=listen, daemon=True))
        for thread in self._threads:
            thread.start()

    def _serve(self, listening: socket.socket, greeting: bytes, num_visitors: int) -> None:
        seen: set[bytes] = set()
        with listening:
            while len(seen) < num_visitors and (rest_s := self._until - time.monotonic()) > 0:
                listening.settimeout(rest_s)
                with contextlib.suppress(OSError):
                    visitor, _ = listening.accept()
                    with visitor:
                        visitor.settimeout(1.0)
                        visitor.sendall(greeting)
                        seen.add(visitor.recv(16))  # who it is
                        visitor.recv(1)  # it closes first, which leaves this port free

    def wait(self) -> None:
        """Until all have come, or the time is over."""
        for thread in self._threads:
            thread.join(max(0.0, self._until - time.monotonic()))


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("", port))
        listening.listen(1024)
    except OSError:
        listening.close()
        raise
    return listening


def _greeting(purpose: str) -> bytes:
    return f"{'dslaunch ' + purpose:<32}".encode()


def network(request: Request) -> Network:
    """Calls what is to be called, all at once."""
    found = tuple(
        Interface(name, address, _setting(name, "mtu"), _setting(name, "speed"))
        for address, name in interfaces().items()
    )
    calls: list[Call | None] = [None] * len(request.calls)

    def call(i: int, purpose: str, addresses: tuple[str, ...], port: int) -> None:
        calls[i] = _call(purpose, addresses, port, request)

    threads = [
        threading.Thread(target=call, args=(i, *asked), daemon=True) for i, asked in enumerate(request.calls)
    ]
    for thread in threads:
        thread.start()
    hostname = socket.gethostname()
    own, master = _resolve(hostname), _resolve(request.master)
    for thread in threads:
        thread.join()
    return Network(
        hostname=hostname,
        own_address=own,
        master_address=master,
        interfaces=found,
        calls=tuple(made for made in calls if made is not None),
        missing_interfaces=_missing_interfaces({name for _, name in socket.if_nameindex()}),
    )


def _call(purpose: str, addresses: tuple[str, ...], port: int, request: Request) -> Call:
    """The first address that answers with the greeting, tried in order, all of them again until in time."""
    begun_at = time.monotonic()
    each_s = _CALL_S / max(1, len(addresses))
    error = "has no address"
    while True:
        for address in addresses:
            error = _try(address, port, _greeting(purpose), str(request.place).encode(), each_s)
            if not error:
                interface = interfaces().get(source_address(address), "")
                return Call(purpose, address, interface, port, "")
        patience_s = max(_CALL_S, request.limit_s - _SPARE_S) if error == _REFUSED else _CALL_S
        if time.monotonic() + _RETRY_S > begun_at + patience_s:
            return Call(purpose, "", "", port, error)
        time.sleep(_RETRY_S)


def _try(address: str, port: int, greeting: bytes, index: bytes, timeout_s: float) -> str:
    """Why it did not answer, "" where it did."""
    try:
        with socket.create_connection((address, port), timeout_s) as connection:
            connection.sendall(index)
            said = connection.recv(len(greeting), socket.MSG_WAITALL)
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or str(error)
    return "" if said == greeting else "someone else answers there"


def _resolve(name: str) -> str:
    with contextlib.suppress(OSError, UnicodeError):
        return socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0] if name else ""  # type: ignore[return-value]
    return ""


def _setting(interface: str, name: str) -> int:
    with contextlib.suppress(OSError, ValueError), open(f"/sys/class/net/{interface}/{name}") as file:
        return int(file.read())
    return -1


def _missing_interfaces(present: set[str]) -> tuple[tuple[str, str], ...]:
    """NCCL takes prefixes, `=` before a whole name and `^` before what is not to be used."""
    missing = []
    for variable in _VARIABLES:
        value = os.environ.get(variable, "")
        if not value or value.startswith("^"):
            continue
        names = value.removeprefix("=").split(",")
        if not any(
            own.partition(":")[0].startswith(name.partition(":")[0]) for name in names for own in present
        ):
            missing.append((variable, value))
    return tuple(missing)
