"""`dslaunchctl hosts`: a topology, for people and for programs. Pure."""

from __future__ import annotations

import json

from dslaunch.hostfile import Host, Topology
from dslaunch.launcher.counted import counted


def hosts_as_json(topology: Topology, origin: str) -> str:
    """One object: `origin`, `num_hosts`, `num_slots`, `hosts` in rank order; null for what is not said."""
    record = {
        "origin": origin,
        "num_hosts": len(topology),
        "num_slots": topology.num_slots,
        "hosts": [
            {
                "host": host.name,
                "slots": list(host.slots),
                "user": host.user,
                "port": host.port,
                "python": host.python,
            }
            for host in topology
        ],
    }
    return json.dumps(record, indent=2)


def hosts_as_text(topology: Topology, origin: str) -> str:
    """A line a host, in rank order, and one for all of them."""
    name_width = max(len(host.name) for host in topology)
    slots_width = max(len(_slots(host)) for host in topology)
    lines = [
        f"{host.name:{name_width}}  {_slots(host):{slots_width}}  {_options(host)}".rstrip()
        for host in topology
    ]
    num_hosts = counted(len(topology), "host")
    return "\n".join([*lines, f"{num_hosts}, {counted(topology.num_slots, 'slot')} ({origin})"])


def _slots(host: Host) -> str:
    return f"slots {','.join(map(str, host.slots))}"


def _options(host: Host) -> str:
    options = (("user", host.user), ("port", host.port), ("python", host.python))
    return "  ".join(f"{name}={value}" for name, value in options if value is not None)
