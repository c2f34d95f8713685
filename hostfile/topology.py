"""The values this room produces: hosts, their slots, and the order they stand in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of a hostfile.

    `slots` are device indices on that machine, in the order their ranks take them.
    `user` and `port` are None where the SSH configuration decides, `python` (the absolute path of its
    interpreter) where the host has the launcher's.
    """

    name: str
    slots: tuple[int, ...]
    user: str | None = None
    port: int | None = None
    python: str | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """Hosts in rank order. Never empty of hosts, no host twice, no host without slots."""

    hosts: tuple[Host, ...]

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)

    @property
    def num_slots(self) -> int:
        return sum(len(host.slots) for host in self.hosts)
