"""The order in which stage 3 needs its buckets: recorded in one pass, expected in the next. No torch.

A pass is what happens between two forwards of the model: its forward and, in training, its backward. While a
pass goes as the last one of its kind did, what comes next is known, and so is that all ranks agree. From the
first step that is new, every one is compared with the other ranks before anything is sent: ranks that have
parted are told so, instead of waiting for each other for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

Compare = Callable[[str], None]  # raises unless every rank is at the same step


class GatherOrder:
    """Which bucket is needed when."""

    def __init__(self, compare: Compare) -> None:
        self._compare = compare
        self._recorded: dict[Hashable, tuple[tuple[int, ...], int | None]] = {}
        self._kind: Hashable = None
        self._expected: tuple[int, ...] = ()
        self._expected_turn: int | None = None  # how many steps come before the first one in backward
        self._turn: int | None = None
        self._known = False  # the pass has gone as expected so far
        self._steps: list[int] = []

    @property
    def is_known(self) -> bool:
        """Whether the pass has gone as a recorded one so far."""
        return self._known

    def forget(self) -> None:
        """Record anew, from this pass on."""
        self._recorded.clear()
        self._expected, self._expected_turn, self._known = (), None, False

    def begin(self, kind: Hashable) -> None:
        """A new pass; `kind` tells passes apart that go differently (training, evaluation)."""
        if self._steps:
            self._recorded[self._kind] = tuple(self._steps), self._turn
        self._kind = kind
        self._expected, self._expected_turn = self._recorded.get(kind, ((), None))
        self._known = bool(self._expected)
        self._steps = []
        self._turn = None

    def step(self, bucket: int, where: str, backward: bool) -> None:
        """`bucket` is needed next, `where` in the model; raises if the ranks are not all there."""
        position = len(self._steps)
        if backward and self._turn is None:
            self._turn = position
        self._steps.append(bucket)
        if self._known and self._expected[position : position + 1] == (bucket,):
            return
        self._known = False
        self._compare(where)

    def ahead(self) -> Sequence[int]:
        """The buckets expected after this step, nearest first; empty where nothing is known."""
        return self._expected[len(self._steps) :] if self._known else ()

    def ahead_of_turn(self) -> Sequence[int]:
        """The same, in a forward without what its backward needs: between them, activations are whole."""
        ahead, turn, done = self.ahead(), self._expected_turn, len(self._steps)
        return ahead if turn is None or done > turn else ahead[: turn - done]
