"""What the user sees of a running job. Listens to the same inputs as `step`, and decides nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

from dslaunch.launcher import wire
from dslaunch.launcher.console import Console
from dslaunch.launcher.plan import LaunchPlan
from dslaunch.launcher.report import report
from dslaunch.launcher.streams import LineStream
from dslaunch.launcher.supervise import Action, Begin, Finish, FromAgent, Input, Signal, Stop
from dslaunch.launcher.verdict import Interrupted, Verdict

_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


class Display:
    """Rank lines to stdout and stderr, the launcher's own words to stderr."""

    def __init__(
        self,
        console: Console,
        plan: LaunchPlan,
        device: Callable[[int], str],
        *,
        quiet: bool,
        started_at: float,
    ) -> None:
        """`started_at` is on the monotonic clock, in seconds."""
        self._console = console
        self._plan = plan
        self._device = device
        self._quiet = quiet
        self._started_at = started_at
        self._answered_s: float | None = None
        self._num_started = 0
        self._streams: dict[tuple[int, int], LineStream] = {}
        colour = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._coloured = {fd for fd in (1, 2) if colour and os.isatty(fd)}

    def began(self, plan: LaunchPlan) -> None:
        """The plan is final: its master address is known."""
        self._plan = plan
        self._answered_s = time.monotonic() - self._started_at

    def on_input(self, what: Input) -> None:
        match what:
            case FromAgent(node_rank, wire.Output(rank, stream, text)):
                data = text.encode("utf-8", "surrogateescape")
                if self._num_ranks == 1:
                    self._pass_through(rank, stream, data)
                else:
                    self._show(node_rank, rank, stream, self._stream(rank, stream).feed(data))
            case FromAgent(node_rank, wire.Exited(rank)):
                for stream in (1, 2):
                    self._show(node_rank, rank, stream, self._stream(rank, stream).end())
            case FromAgent(_, wire.Dropped(rank, num_bytes)):
                self._say(f"{num_bytes} bytes of rank {rank} were not shown: its host's link is too slow")
            case FromAgent(_, wire.Started()):
                self._num_started += 1
                if self._num_started == self._num_ranks:
                    self._say(self._started())
            case _:
                pass

    def on_action(self, action: Action) -> None:
        match action:
            case Stop(Interrupted(), _):
                self._say("stopping; press Ctrl-C again to kill")
            case Finish(verdict):
                self._finish(verdict)
            case Begin() | Stop() | Signal():
                pass

    @property
    def _num_ranks(self) -> int:
        return sum(len(node.ranks) for node in self._plan.launched)

    def _started(self) -> str:
        num_hosts = len(self._plan.launched)
        hosts = "1 host" if num_hosts == 1 else f"{num_hosts} hosts"
        ranks = "1 rank" if self._num_ranks == 1 else f"{self._num_ranks} ranks"
        return (
            f"{ranks} on {hosts} meet at {self._plan.master.addr}:{self._plan.master.port} "
            f"(hosts answered after {self._answered_s:.2f} s, "
            f"ranks started after {time.monotonic() - self._started_at:.2f} s)"
        )

    def _stream(self, rank: int, stream: int) -> LineStream:
        return self._streams.setdefault((rank, stream), LineStream())

    def _pass_through(self, rank: int, stream: int, data: bytes) -> None:
        """A single rank owns the terminal: what it writes is shown as it is, progress bars included."""
        for _ in self._stream(rank, stream).feed(data):
            pass
        self._console.write_lines(stream, data)

    def _show(self, node_rank: int, rank: int, stream: int, lines: Iterable[bytes]) -> None:
        shown = list(lines)
        if shown and self._num_ranks > 1:
            prefix = self._prefix(node_rank, rank, stream)
            self._console.write_lines(stream, b"".join(prefix + line + b"\n" for line in shown))

    def _prefix(self, node_rank: int, rank: int, stream: int) -> bytes:
        prefix = f"[{self._plan.nodes[node_rank].host}:{rank}]"
        if stream in self._coloured:
            prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{prefix}\x1b[0m"
        return f"{prefix} ".encode()

    def _finish(self, verdict: Verdict) -> None:
        for line in report(verdict, self._plan, self._device, self._tail):
            self._console.write(2, f"dslaunch: {line}\n".encode("utf-8", "surrogateescape"))

    def _tail(self, rank: int) -> Sequence[str]:
        lines = self._stream(rank, 2).tail or self._stream(rank, 1).tail
        return [line.decode("utf-8", "replace") for line in lines]

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._console.write(2, f"dslaunch: {text}\n".encode("utf-8", "surrogateescape"))
