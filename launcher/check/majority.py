"""What most hosts have, and who has something else. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping


def deviations(values: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """`(host, value, others)` for each host that has not what most have, values by host.

    "" is none at all: it never is what is right, unless nobody has any. Of two values that as many have,
    that of the host that comes first is right. `others` says what the others have: `15 others have 2.13.0`.
    """
    counts = Counter(value for value in values.values() if value)
    if not counts:
        return
    usual, number = counts.most_common(1)[0]  # of equal counts, the one met first
    who = "1 other has" if number == 1 else f"{number} others have"
    for host, value in values.items():
        if value != usual:
            yield host, value, f"{who} {usual}"


def usual(values: Mapping[str, int]) -> int | None:
    """The number that most hosts have; None for no hosts. Of equal counts, the first host's."""
    counts = Counter(values.values())
    return counts.most_common(1)[0][0] if counts else None
