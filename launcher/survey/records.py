"""What a surveyor is asked and what it answers, as values and as JSON. Travels with it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

MARK = "dslaunch-survey:"
"""In front of the answer's line: whatever else the interpreter prints at its start is passed over."""


MASTER_PORT, ANY_PORT, NEXT_HOST = "master port", "any port", "next host"
"""Why another host is called: the first one at the port where ranks meet, or at one that a process may be
given; or, at such a one, the host that comes next.
"""


class Request(NamedTuple):
    """What one host is asked.

    Attributes:
        place: this host's, among those asked; `num_asked`: how many they are.
        folder: where ranks would start; `script`: path or module, "" for none to look for.
        accelerator: kind of the slots, "auto" to look.
        is_thorough: with tools that take a while (nvidia-smi, the kernel's log).
        master: name by which others may call the first host.
        calls: what is to be reached from here, as `(purpose, addresses, port)`; one address is enough.
        doors: ports to be opened here, each for so many visitors: `(purpose, port, visitors)`.
        limit_s: after which the answer is sent with what is known.
    """

    place: int
    num_asked: int
    folder: str
    script: str
    is_module: bool
    accelerator: str
    is_thorough: bool
    master: str
    calls: tuple[tuple[str, tuple[str, ...], int], ...]
    doors: tuple[tuple[str, int, int], ...]
    limit_s: float

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    @staticmethod
    def from_json(text: str) -> Request:
        record = json.loads(text)
        record["calls"] = tuple(
            (purpose, tuple(addresses), port) for purpose, addresses, port in record["calls"]
        )
        record["doors"] = tuple((purpose, port, visitors) for purpose, port, visitors in record["doors"])
        return Request(**record)


class Software(NamedTuple):
    """Versions. `packages` has those that are installed; `cuda` is torch's, "" where there is none."""

    python: str = ""
    executable: str = ""
    packages: Mapping[str, str] = {}
    cuda: str = ""
    driver: str = ""


class Program(NamedTuple):
    """What ranks would run. `folder` and `script` are "" where they can be used, else why not.

    `digest` is the SHA-256 of the script's bytes, "" where there is no file to read.
    """

    folder: str = ""
    script: str = ""
    digest: str = ""


class Gpu(NamedTuple):
    """One device, by its index. `troubles` are what its driver says is wrong with it, in words."""

    device: int
    name: str
    memory_bytes: int
    used_bytes: int
    troubles: tuple[str, ...]


class Holder(NamedTuple):
    """A process that has a device open. `device` is an index, `used_bytes` 0 where it is not known."""

    device: int
    pid: int
    command: str
    used_bytes: int


class Devices(NamedTuple):
    """Devices of a kind. `xids` are the driver's error messages of this boot, newest last.

    `links` are ports of RDMA adapters with their states, as `(mlx5_0/1, ACTIVE)`.
    """

    kind: str = ""
    num_devices: int = 0
    gpus: tuple[Gpu, ...] = ()
    holders: tuple[Holder, ...] = ()
    xids: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


class Space(NamedTuple):
    """Room in a file system. `free_inodes` is -1 where it counts none."""

    purpose: str
    path: str
    total_bytes: int
    free_bytes: int
    free_inodes: int


class Machine(NamedTuple):
    """Room and limits; a limit of -1 is none. `memory_errors` are uncorrected ones of its RAM since boot."""

    spaces: tuple[Space, ...] = ()
    memlock_bytes: int = -1
    num_files: int = -1
    somaxconn: int = -1
    memory_bytes: int = 0
    memory_errors: int = 0


class Interface(NamedTuple):
    """A network interface with an IPv4 address. `speed_mbps` is -1 where it tells none."""

    name: str
    address: str
    mtu: int
    speed_mbps: int


class Call(NamedTuple):
    """An attempt to reach another host. `address` is the one that answered, "" where none did.

    `interface` is this host's towards it; `error` why the last address failed.
    """

    purpose: str
    address: str
    interface: str
    port: int
    error: str


class Network(NamedTuple):
    """Names and ways. Addresses are "" where a name cannot be resolved.

    `closed` are doors that could not be opened, as `(purpose, why)`. `missing_interfaces` are those that
    NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME name, and that are not here.
    """

    hostname: str = ""
    own_address: str = ""
    master_address: str = ""
    interfaces: tuple[Interface, ...] = ()
    calls: tuple[Call, ...] = ()
    closed: tuple[tuple[str, str], ...] = ()
    missing_interfaces: tuple[tuple[str, str], ...] = ()


class Answer(NamedTuple):
    """All that one host tells. `unknown` are the parts that failed or took too long, and why.

    `time_ns` is its clock when it told.
    """

    software: Software = Software()
    program: Program = Program()
    devices: Devices = Devices()
    machine: Machine = Machine()
    network: Network = Network()
    unknown: Mapping[str, str] = {}
    time_ns: int = 0

    def to_json(self) -> str:
        record = {name: getattr(self, name)._asdict() for name in PARTS}
        return json.dumps({**record, "unknown": dict(self.unknown), "time_ns": time.time_ns()})


PARTS = ("software", "program", "devices", "machine", "network")


def answer_from_json(text: str) -> Answer:
    """Raises ValueError, LookupError or TypeError on other text."""
    record: dict[str, Any] = json.loads(text)
    devices, machine, network = record["devices"], record["machine"], record["network"]
    devices["gpus"] = tuple(
        Gpu(device, name, memory, used, tuple(troubles))
        for device, name, memory, used, troubles in devices["gpus"]
    )
    devices["holders"] = tuple(Holder(*holder) for holder in devices["holders"])
    devices["xids"] = tuple(devices["xids"])
    devices["links"] = tuple((name, state) for name, state in devices["links"])
    machine["spaces"] = tuple(Space(*space) for space in machine["spaces"])
    network["interfaces"] = tuple(Interface(*interface) for interface in network["interfaces"])
    network["calls"] = tuple(Call(*call) for call in network["calls"])
    for name in ("closed", "missing_interfaces"):
        network[name] = tuple((what, why) for what, why in network[name])
    return Answer(
        Software(**record["software"]),
        Program(**record["program"]),
        Devices(**devices),
        Machine(**machine),
        Network(**network),
        record["unknown"],
        record["time_ns"],
    )
