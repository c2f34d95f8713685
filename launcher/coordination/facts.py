"""What must be the same on every node, in words that can be compared field by field. Pure.

The master's address is not among it: a node that reached node 0 by it has proven it right, and some
operators (Kubeflow's) give node 0 `localhost` where the others get its name.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass

MAX_VALUE_BYTES = 240
"""Of one value as JSON, so that all of them fit into one frame."""
_DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Fact:
    """One field by the name a user knows it by. Values are the same exactly where the originals are."""

    name: str
    value: str


Facts = tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that two nodes tell differently; None where one of them does not tell it."""

    name: str
    first: str | None
    second: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """The job as one node sees it.

    Attributes:
        version: of dslaunch.
        nodes: hosts with their slots in rank order, as text.
        program: the script, module or program as typed.
        content: a digest of the script's bytes, "" where there is no file to read.
        args: what follows it.
    """

    version: str
    num_nodes: int
    world_size: int
    nodes: str
    program: str
    content: str
    args: tuple[str, ...]
    master_port: int

    def facts(self) -> Facts:
        return (
            fact("dslaunch version", self.version),
            fact("number of nodes", str(self.num_nodes)),
            fact("world size", str(self.world_size)),
            fact("nodes and slots", self.nodes),
            fact("script", self.program),
            fact("content of the script", self.content),
            fact("arguments", shlex.join(self.args)),
            fact("master port", str(self.master_port)),
        )


def fact(name: str, value: str) -> Fact:
    """A long value is cut, and a digest of all of it stands behind."""
    return Fact(name, value if _num_bytes(value) <= MAX_VALUE_BYTES else _abridged(value))


def _abridged(value: str) -> str:
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    rest = f"... ({len(value)} characters, sha256 {digest})"
    return shortened(value, MAX_VALUE_BYTES - _num_bytes(rest)) + rest


def shortened(text: str, num_bytes: int) -> str:
    """The longest start of `text` whose JSON is no longer than that."""
    if _num_bytes(text) <= num_bytes:
        return text
    low, high = 0, min(len(text), num_bytes)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _num_bytes(text[:middle]) <= num_bytes else (low, middle - 1)
    return text[:low]


def _num_bytes(text: str) -> int:
    return len(json.dumps(text))


def differences(first: Facts, second: Facts) -> tuple[Difference, ...]:
    """The fields that differ, in the order they are told."""
    one, other = ({fact.name: fact.value for fact in facts} for facts in (first, second))
    return tuple(
        Difference(name, one.get(name), other.get(name))
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    )
