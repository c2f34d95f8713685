"""What the user sees of a running job. Listens to the same inputs as `step`, and decides nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dslaunch.hostfile import fold_names
from dslaunch.launcher import wire
from dslaunch.launcher.again import command_again
from dslaunch.launcher.clock_offset import ClockOffset
from dslaunch.launcher.console import Console
from dslaunch.launcher.counted import counted
from dslaunch.launcher.fold import ranges
from dslaunch.launcher.master import Meeting
from dslaunch.launcher.plan import LaunchPlan
from dslaunch.launcher.rank_lines import RankLines
from dslaunch.launcher.report import Log, particulars, report
from dslaunch.launcher.run_folder import RunFolder
from dslaunch.launcher.streams import Lines, RankStreams
from dslaunch.launcher.supervise import Action, AgentClosed, Begin, Finish, FromAgent, Input, Signal, Stop
from dslaunch.launcher.verdict import Cause, Interrupted, JobHung, Verdict, grace_after
from dslaunch.launcher.whereabouts import Whereabouts

_PROGRESS_AFTER_S = 1.0
_PLAIN_PROGRESS_EVERY_S = 10.0
_CLEAR_LINE = "\r\x1b[K"

Sink = Callable[[Lines], None]


@dataclass(frozen=True, slots=True)
class Words:
    """How much the launcher says itself. Errors are always said."""

    info: bool
    debug: bool


class Display:
    """Rank lines to their sinks, the launcher's own words to stderr."""

    def __init__(
        self,
        console: Console,
        plan: LaunchPlan,
        device: Callable[[int], str],
        *,
        rank_lines: RankLines | None,
        sinks: list[Sink],
        words: Words,
        folder: RunFolder | None,
        started_at: float,
        log: Log = lambda rank: "",
        argv: Sequence[str] = (),
    ) -> None:
        """`device(slot)` names a device; `sinks` get lines first; `started_at` is on the monotonic clock.

        `argv` are the words that `dslaunch` was given.
        """
        self._console = console
        self._plan = plan
        self._device = device
        self._rank_lines = rank_lines
        self._sinks = sinks
        self._words = words
        self._folder = folder
        self._started_at = started_at
        self._log = log
        self._argv = argv
        self._resumes = "DSLAUNCH_RESUME" in plan.nodes[0].ranks[0].env
        self._answered_s: float | None = None
        self._interface = ""
        self._num_started = 0
        self._engines: dict[int, wire.EngineFound] = {}
        self._running: dict[int, str] = {}
        self._kill_at: float | None = None
        self._streams = RankStreams()
        self._whereabouts = Whereabouts(plan)
        self._waiting_for = {node.node_rank: node.host for node in plan.launched}
        self._is_terminal = os.isatty(2) and os.environ.get("TERM") != "dumb"
        self._progress_at = started_at + _PROGRESS_AFTER_S
        self._has_progress = False

    def began(self, plan: LaunchPlan, meeting: Meeting) -> None:
        """The plan is final: it is known where ranks meet."""
        self._plan = plan
        self._answered_s = time.monotonic() - self._started_at
        self._clear_progress()
        self._interface = meeting.interface
        if self._folder is not None:
            self._folder.write_plan(plan)

    def on_input(self, what: Input) -> None:
        if self._folder is not None:
            self._folder.write_input(what)
        self._whereabouts.on_input(what)
        for lines in self._streams.feed(what):
            for sink in self._sinks:
                self._pour(sink, lines)
            if self._rank_lines is not None:
                self._rank_lines.show(lines)
        match what:
            case FromAgent(node_rank, wire.Ready()) | AgentClosed(node_rank):
                self._waiting_for.pop(node_rank, None)
            case FromAgent(_, wire.Dropped(rank, num_bytes)):
                self._say(f"{num_bytes} bytes of rank {rank} were not shown: its host's link is too slow")
            case FromAgent(node_rank, wire.Exited(rank)):
                self._running.pop(rank, None)
            case FromAgent(node_rank, wire.EngineFound() as found):
                self._engines[node_rank] = found
            case FromAgent(node_rank, wire.Started(rank, pid)):
                self._running[rank] = self._plan.nodes[node_rank].host
                self._debug(f"rank {rank} is pid {pid} on {self._plan.nodes[node_rank].host}")
                self._num_started += 1
                if self._num_started == self._num_ranks:
                    self._say(self._started())
                    if len(self._hosts_by_engine()) > 1:
                        self._warn(f"hosts differ in what import deepspeed finds: {self._engine()}")
            case FromAgent(node_rank, wire.Goodbye(stuck, progress)):
                self._resumes = self._resumes or bool(progress)
                if stuck:
                    host = self._plan.nodes[node_rank].host
                    self._warn(f"{host}: cannot be ended (D: uninterruptible sleep): {', '.join(stuck)}")
            case _:
                pass

    def clock_is_known(self, node_rank: int, offset: ClockOffset) -> None:
        """Better than before."""
        if self._folder is not None:
            self._folder.write_clock(node_rank, offset)

    def on_action(self, action: Action) -> None:
        match action:
            case Stop(cause, _):
                self._whereabouts.ask_again()
                now = time.monotonic()
                self._progress_at = now + _PROGRESS_AFTER_S
                node = self._plan.launched[0]
                self._kill_at = now + grace_after(cause, node.grace_s, node.lease_s)
                if isinstance(cause, Interrupted):
                    self._say("stopping; press Ctrl-C again to kill")
            case Finish(verdict):
                self._finish(verdict)
            case Begin() | Signal():
                pass

    def on_tick(self) -> None:
        """Some time has passed."""
        if self._rank_lines is not None:
            self._rank_lines.on_tick()
        now = time.monotonic()
        if now < self._progress_at:
            return
        self._progress_at = now + (0.5 if self._is_terminal else _PLAIN_PROGRESS_EVERY_S)
        if self._kill_at is not None and self._running:
            self._progress(self._who_is_left(now))
        elif self._answered_s is None and self._waiting_for:
            self._progress(self._who_is_awaited(now))

    @property
    def _num_ranks(self) -> int:
        return sum(len(node.ranks) for node in self._plan.launched)

    def _who_is_awaited(self, now: float) -> str:
        num_nodes = len(self._plan.launched)
        return (
            f"{num_nodes - len(self._waiting_for)}/{num_nodes} hosts answered, "
            f"waiting for {fold_names(self._waiting_for.values())} {now - self._started_at:.0f} s"
        )

    def _who_is_left(self, now: float) -> str:
        assert self._kill_at is not None
        ranks = "rank" if len(self._running) == 1 else "ranks"
        hosts = fold_names(dict.fromkeys(self._running.values()))
        left_s = self._kill_at - now
        when = f"SIGKILL in {left_s:.0f} s" if left_s > 0 else "killed"
        return f"waiting for {ranks} {ranges(sorted(self._running))} on {hosts} to end, {when}"

    def _progress(self, text: str) -> None:
        """A line that is written over on a terminal, and a plain one now and then elsewhere."""
        if self._is_terminal and self._words.info:
            self._console.write(2, f"{_CLEAR_LINE}dslaunch: {text}".encode())
            self._has_progress = True
        else:
            self._say(text)

    def _clear_progress(self) -> None:
        if self._has_progress:
            self._console.write(2, _CLEAR_LINE.encode())
            self._has_progress = False

    def _started(self) -> str:
        hosts, ranks = counted(len(self._plan.launched), "host"), counted(self._num_ranks, "rank")
        over = f" over {self._interface}, named to NCCL and gloo where unset" if self._interface else ""
        return (
            f"{ranks} on {hosts} meet at {self._plan.master.addr}:{self._plan.master.port}{over} "
            f"(hosts answered after {self._answered_s:.2f} s, "
            f"ranks started after {time.monotonic() - self._started_at:.2f} s), deepspeed: {self._engine()}"
        )

    def _engine(self) -> str:
        """What `import deepspeed` finds, and where, if hosts differ."""
        found = self._hosts_by_engine()
        if len(found) == 1:
            return next(iter(found))
        return ", ".join(f"{words} on {fold_names(hosts)}" for words, hosts in found.items())

    def _hosts_by_engine(self) -> Mapping[str, list[str]]:
        hosts: dict[str, list[str]] = {}
        for node_rank, (engine, version) in sorted(self._engines.items()):
            words = f"{version}, installed" if engine == "installed" else engine
            hosts.setdefault(words, []).append(self._plan.nodes[node_rank].host)
        return hosts

    def stays_awake(self) -> None:
        """Ctrl-Z was typed."""
        self._say("Ctrl-Z is passed over: hosts would take a sleeping launcher for dead")

    def keep(self, seen: Whereabouts) -> None:
        """Write down where the ranks of a hanging job are. Touches nothing but files: it takes a while."""
        if self._folder is not None:
            self._folder.write_flights(seen.flights())
            self._folder.write_census("hang", seen.text())

    def hangs(self, hung: JobHung, *, is_ended: bool) -> None:
        """The job makes no progress. Where it is ended for that, the last words tell."""
        if is_ended:
            return
        if self._folder is not None:
            self._folder.write_input(hung)
        for line in (f"no progress for {hung.after_s:g} s: {hung.what}", *hung.places):
            self._warn(line)
        self._warn("nothing is done about it: see --hang_timeout")

    def cause_lines(self, cause: Cause) -> list[str]:
        """The words that name a cause."""
        return report(Verdict(cause, (), ()), self._plan, self._device, self._streams.tail)

    def _pour(self, sink: Sink, lines: Lines) -> None:
        """A full disk must not end the job: say it once and go on without the file."""
        try:
            sink(lines)
        except OSError as error:
            self._sinks.remove(sink)
            self._warn(f"logs are written no more: {error}")

    def _finish(self, verdict: Verdict) -> None:
        self._clear_progress()
        if self._rank_lines is not None:
            self._rank_lines.flush()
        by_user = isinstance(verdict.cause, Interrupted)
        places = self._whereabouts.lines_of_living(mark=by_user) + self._whereabouts.flight_lines()
        tail = self._streams.tail
        words = report(verdict, self._plan, self._device, tail, places, self._log)
        for line in words:
            self._warn(line)
        if self._folder is not None:
            where = particulars(verdict, self._plan, self._device, tail, self._log)
            again = command_again(self._argv, resumes=self._resumes)
            self._folder.write_verdict(verdict, words, where, again)
            if places:
                self._folder.write_census("end", self._whereabouts.text())
                self._folder.write_flights(self._whereabouts.flights())

    def _say(self, text: str) -> None:
        if self._words.info:
            self._warn(text)

    def _debug(self, text: str) -> None:
        if self._words.debug:
            self._warn(text)

    def _warn(self, text: str) -> None:
        self._clear_progress()
        self._console.say(text)
