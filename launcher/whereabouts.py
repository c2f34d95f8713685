"""What agents have told of where their ranks are, since they were last asked."""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Collection, Iterator, Sequence

from dslaunch.launcher import census, wire
from dslaunch.launcher.flight import flight_lines
from dslaunch.launcher.plan import LaunchPlan
from dslaunch.launcher.supervise import AgentClosed, FromAgent, Input

_MAX_DUMP_BYTES = 256 << 20


class Whereabouts:
    """Listens to the run's inputs; only ranks that this process starts are known."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.hosts = {rank.rank: node.host for node in plan.launched for rank in node.ranks}
        self.nodes = frozenset(node.node_rank for node in plan.launched)
        self._closed: set[int] = set()
        self._ends: dict[int, int] = {}
        self._answered: set[int] = set()
        self._stacks: dict[int, wire.Stack] = {}
        self._flight_text: dict[int, str] = {}
        self._flights: dict[int, bytes] = {}  # deflated: there may be thousands of some megabytes

    def ask_again(self) -> None:
        """What is told from now on counts."""
        self._answered.clear()
        self._stacks.clear()

    def on_input(self, what: Input) -> None:
        match what:
            case FromAgent(_, wire.Stack(rank) as stack):
                self._stacks[rank] = stack
            case FromAgent(_, wire.FlightPiece(rank, text, last)):
                self._flight_text[rank] = self._flight_text.get(rank, "") + text
                if last:
                    self._flights[rank] = _decoded(self._flight_text.pop(rank))
            case FromAgent(node_rank, wire.CensusEnd()):
                self._answered.add(node_rank)
            case FromAgent(_, wire.Exited(rank, returncode)):
                self._ends[rank] = returncode
            case AgentClosed(node_rank):
                self._closed.add(node_rank)
            case _:
                pass

    @property
    def answered(self) -> frozenset[int]:
        """The nodes that have."""
        return frozenset(self._answered)

    def has_all(self, awaited: Collection[int]) -> bool:
        """Whether of these nodes every agent that still can has answered."""
        return self._answered | self._closed >= set(awaited)

    @property
    def stacks(self) -> Sequence[wire.Stack]:
        """In rank order."""
        return [stack for _, stack in sorted(self._stacks.items())]

    def groups(self) -> tuple[census.Group, ...]:
        """All ranks, whatever has become of them."""
        return census.group(self.hosts, self.stacks, self._ends)

    def lines(self) -> list[str]:
        """All ranks by their places, the odd ones marked."""
        return census.lines(self.groups(), self.hosts, mark=True)

    def lines_of_living(self, *, mark: bool) -> list[str]:
        """The places of those that lived when they were asked; none where nobody has answered."""
        groups = census.group({rank: self.hosts[rank] for rank in self._stacks}, self.stacks, {})
        return census.lines(groups, self.hosts, mark=mark)

    def flights(self) -> Iterator[tuple[int, bytes]]:
        """The newest dumps of flight recorders, with their ranks."""
        for rank, data in sorted(self._flights.items()):
            yield rank, _inflated(data)

    def flight_lines(self) -> list[str]:
        """What the flight recorders say of collectives that wait; none without them.

        For a thousand ranks this takes many seconds.
        """
        return flight_lines(self.flights())

    def text(self) -> str:
        """All that was told of their places, for a file."""
        told = [
            f"== rank {stack.rank} on {self.hosts[stack.rank]}, pid {stack.pid}, state {stack.state or '?'}"
            f"{f', waits in {stack.waits_in}' if stack.waits_in else ''}\n{stack.text}"
            for stack in self.stacks
        ]
        return "\n".join(["\n".join(self.lines()), *told])


def _decoded(text: str) -> bytes:
    """What base64 text stands for; b"" for what is none."""
    try:
        return binascii.a2b_base64(text)
    except (binascii.Error, ValueError):
        return b""


def _inflated(deflated: bytes) -> bytes:
    """The dump; b"" for what is none, or is too large to be one."""
    inflating = zlib.decompressobj()
    try:
        data = inflating.decompress(deflated, _MAX_DUMP_BYTES)
    except zlib.error:
        return b""
    return data if inflating.eof else b""
