"""`--fold`: a line that many ranks print alike is shown once, with all of them named. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

WINDOW_S = 0.5
"""How long a line waits for the same line of other ranks."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A line and the ranks that printed it, in ascending order."""

    stream: int
    line: bytes
    ranks: tuple[int, ...]


class Folder:
    """Lines wait until every one of `ranks` has printed them, or the window has passed."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._num_ranks = len(frozenset(ranks))
        self._waiting: dict[tuple[int, bytes], tuple[float, set[int]]] = {}

    def add(self, rank: int, stream: int, lines: Iterable[bytes], now: float) -> Iterator[Folded]:
        """What is complete now. `now` is in seconds on any clock that does not go back."""
        for line in lines:
            key = (stream, line)
            if key in self._waiting and rank in self._waiting[key][1]:
                yield self._take(key)  # the rank prints it a second time
            _, ranks = self._waiting.setdefault(key, (now, set()))
            ranks.add(rank)
            if len(ranks) == self._num_ranks:
                yield self._take(key)

    def expire(self, now: float) -> Iterator[Folded]:
        """What has waited long enough."""
        for key in [key for key, (since, _) in self._waiting.items() if since <= now - WINDOW_S]:
            yield self._take(key)

    def flush(self) -> Iterator[Folded]:
        """All that waits."""
        for key in list(self._waiting):
            yield self._take(key)

    def _take(self, key: tuple[int, bytes]) -> Folded:
        _, ranks = self._waiting.pop(key)
        return Folded(*key, tuple(sorted(ranks)))


def ranges(numbers: Iterable[int]) -> str:
    """`0-3,7` for ascending numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(str(end) for end in part) for part in parts)
