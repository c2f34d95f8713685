"""Work beside the compute: on a GPU a stream of its own; elsewhere a queue that runs when somebody waits.

[Note: order] What a lane is given runs in order, after all it is told to run after, and beside everything
else. Nobody sees its results but who has waited for its mark: `wait` holds back what is queued for compute
from then on, `join` the host. What the work reads and writes must live until one of them has been called; on
a GPU memory of the compute stream may then be freed, as whatever reuses it is queued later.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch


class Waitable(Protocol):
    """Something under way: a mark, or a collective."""

    def wait(self) -> object:
        """Hold back what is queued on the current stream from now on; on CPUs, the host."""


class Mark(Waitable, Protocol):
    """A point in a lane, or in the compute stream."""

    def join(self) -> None:
        """Return when everything up to here is done."""


class Lane(Protocol):
    """Runs work in order."""

    def fence(self) -> Mark:
        """The point that the caller's compute has been queued to."""

    def run(self, work: Callable[[], object], *after: Waitable) -> Mark:
        """Queue `work`, to run after all of `after`."""


class StreamLane:
    """A CUDA stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def fence(self) -> Mark:
        return _EventMark(torch.cuda.current_stream(self._device))

    def run(self, work: Callable[[], object], *after: Waitable) -> Mark:
        with torch.cuda.stream(self._stream):
            for earlier in after:
                earlier.wait()
            work()
            return _EventMark(self._stream)


class _EventMark:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._device = stream.device
        # A host that joins sleeps: the cores are for the optimizer.
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)

    def join(self) -> None:
        self._event.synchronize()


class LazyLane:
    """Runs its work as late as it may, by whoever waits first. A missing wait shows in the numbers."""

    def __init__(self) -> None:
        self._queue: deque[_LazyMark] = deque()
        self._lock = threading.RLock()

    def fence(self) -> Mark:
        return _Past()

    def run(self, work: Callable[[], object], *after: Waitable) -> Mark:
        mark = _LazyMark(self, work, after)
        with self._lock:
            self._queue.append(mark)
        return mark

    def run_until(self, mark: _LazyMark) -> None:
        """Run what is queued, up to and with `mark`."""
        with self._lock:
            while not mark.done:
                self._queue.popleft().run()


class _LazyMark:
    def __init__(self, lane: LazyLane, work: Callable[[], object], after: tuple[Waitable, ...]) -> None:
        self.done = False
        self._lane = lane
        self._work: Callable[[], object] | None = work
        self._after = after

    def run(self) -> None:
        assert self._work is not None
        for earlier in self._after:
            earlier.wait()
        with torch.no_grad():
            self._work()
        self._work, self._after, self.done = None, (), True

    def wait(self) -> None:
        self._lane.run_until(self)

    def join(self) -> None:
        self.wait()


class _Past:
    """Everything a CPU has been told to compute is computed."""

    def wait(self) -> None:
        """It has been."""

    def join(self) -> None:
        """It has been."""


def lane_of(device: torch.device) -> Lane:
    """A new lane beside the compute of `device`."""
    return StreamLane(device) if device.type == "cuda" else LazyLane()
