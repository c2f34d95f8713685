"""The agent's life: say ready, take a plan, run its ranks, pass their output up, end everything."""

from __future__ import annotations

import os
import select
import selectors
import signal
import sys
import time
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from dslaunch.launcher.agent import engine, facts, progress, ssh_watch, sweep
from dslaunch.launcher.agent.cgroup import RankCgroup
from dslaunch.launcher.agent.guard import Guard
from dslaunch.launcher.agent.kernel_state import kernel_state
from dslaunch.launcher.agent.link import Link, LinkClosedError
from dslaunch.launcher.agent.observer import Observer
from dslaunch.launcher.agent.obstacle import claim_port, obstacle
from dslaunch.launcher.agent.port_claims import PortClaims
from dslaunch.launcher.agent.process import become_subreaper
from dslaunch.launcher.agent.ranks import Ranks
from dslaunch.launcher.agent.signal_pipe import SignalPipe
from dslaunch.launcher.node_plan import NodePlan, orphan_grace_s, plan_from_json, silence_s
from dslaunch.launcher.wire import (
    CENSUS,
    CENSUS_AND_TERM,
    CENSUS_S,
    NOTICE_SIGNALS,
    Census,
    Goodbye,
    Heartbeat,
    Message,
    PlanPiece,
    Preempted,
    Probe,
    RankSignal,
    Refused,
    Signal,
    Stdin,
    Stop,
    WireError,
)

HEARTBEAT_S = 2.0
_UNHEARD_BEAT_S = 1.0
"""Where nothing comes down, only what was acknowledged of the last beat tells that the launcher is there."""
_WAITING_LEASE_S = 120.0
"""How long an agent without a plan believes in a silent launcher: other hosts may be slow to connect."""
_KILLED_S = 5.0
"""How long a killed rank may take to go: one in uninterruptible sleep never does."""
_HELD_BACKLOG_BYTES = 8 << 20
"""What may wait for the launcher where ranks wait for it as well: their ends are told after it."""
_LAST_FLUSH_S = 10.0
"""How long the launcher may take nothing of what is still to be told."""
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class State(Enum):
    WAITING = auto()
    """No plan yet. The last PlanPiece moves on."""
    RUNNING = auto()
    """Ranks were started. A Stop, a lost launcher or a signal to the agent moves on."""
    STOPPING = auto()
    """Ranks were told to end; SIGKILL follows at the deadline."""


class Agent:
    """One node's supervisor: a single thread around one selector."""

    def __init__(self, link: Link, index: int) -> None:
        """`index` is this agent's place in the list of plans that it will get."""
        self._link = link
        self._index = index
        self._state = State.WAITING
        self._plan_text = ""
        self._plan: NodePlan | None = None
        self._guard: Guard | None = None
        self._cgroup: RankCgroup | None = None
        self._observer: Observer | None = None
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._heard_at = time.monotonic()
        self._beat_s = HEARTBEAT_S
        self._beat_at = time.monotonic() + self._beat_s
        self._launcher_lost = False
        self._selector = selectors.DefaultSelector()
        self._ranks = Ranks(self._selector, self._up, self._pass_on)
        if link.has_way_down:
            self._selector.register(link.read_fd, selectors.EVENT_READ, self._receive)
        self._probed = facts.ProbeServer()
        self._selector.register(self._probed.fd, selectors.EVENT_READ, self._probed.answer)
        self._signals = SignalPipe(signal.SIGCHLD, *_STOP_SIGNALS, *NOTICE_SIGNALS, CENSUS, CENSUS_AND_TERM)
        self._selector.register(self._signals.fd, selectors.EVENT_READ, self._take_signals)

    def run(self, port: int, job_id: str, plans: str) -> None:
        """Until every rank and everything they started is gone. `plans`, if any, came with the command."""
        become_subreaper()
        self._port_claims = PortClaims(port, job_id, self._selector)
        self._facts = facts.gather(
            port_in_use=not self._port_claims.has(port),
            free_port=self._port_claims.free_port(),
            probe_port=self._probed.port,
        )
        self._up(self._facts)
        if plans:
            self._start(plan_from_json(plans, self._index))
        while not self._done:
            for key, _ in self._selector.select(self._timeout()):
                if key.fd in self._selector.get_map():
                    key.data()
            self._tick()
        stuck = self._sweep()
        self._ranks.drain()
        if self._observer is not None:
            self._observer.close(self._up)
        self._port_claims.settle(None)  # whoever hears the goodbye may start the job again
        told = "" if self._plan is None else progress.take(self._plan.node_id)
        self._last_flush(Goodbye(stuck, told))

    def _sweep(self) -> tuple[str, ...]:
        """End all that is left here, and tell what cannot be ended."""
        if self._plan is None or self._guard is None or self._cgroup is None:
            return ()
        self._cgroup.kill()
        stuck = sweep.sweep(self._plan.node_id, spared=self._guard.pid)
        self._guard.dismiss()
        self._cgroup.remove()
        states = [(pid, kernel_state(pid)) for pid in stuck]
        return tuple(f"{pid} ({kernel.state or 'gone'})" for pid, kernel in states)

    @property
    def _done(self) -> bool:
        if self._state is State.WAITING:
            return self._launcher_lost
        has_given_up = self._give_up_at is not None and time.monotonic() >= self._give_up_at
        return has_given_up or self._ranks.have_all_ended

    # -- time

    def _timeout(self) -> float:
        times = [self._beat_at, self._lease_end] if not self._launcher_lost else []
        look_at = self._observer.next_look_at if self._observer is not None else None
        times += [at for at in (self._kill_at, self._give_up_at, look_at) if at is not None]
        return max(0.0, min(times, default=time.monotonic() + HEARTBEAT_S) - time.monotonic())

    @property
    def _lease_end(self) -> float:
        """When the launcher counts as lost."""
        return self._heard_at + (silence_s(self._plan.lease_s) if self._plan else _WAITING_LEASE_S)

    def _tick(self) -> None:
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._give_up_at = now + _KILLED_S
            self._ranks.signal_groups(signal.SIGKILL)
        if not self._launcher_lost:
            if now >= self._lease_end:
                self._lose_launcher()
            elif now >= self._beat_at:
                if self._plan is not None and not self._plan.hears_launcher and not self._is_cut_off():
                    self._heard_at = max(self._heard_at, now - self._beat_s)
                self._beat_at = now + self._beat_s
                self._up(Heartbeat(time.time_ns(), 0))
        if self._observer is not None:
            self._observer.look(self._up)
        self._watch_backlog()

    @staticmethod
    def _is_cut_off() -> bool:
        return ssh_watch.is_resending(os.environ.get("SSH_CONNECTION", ""))

    # -- the link

    def _up(self, message: Message) -> None:
        if not self._launcher_lost:
            try:
                self._link.send(message)
            except LinkClosedError:
                self._lose_launcher()

    def _receive(self) -> None:
        try:
            for message in self._link.receive():
                self._heard_at = time.monotonic()
                self._obey(message)
        except (LinkClosedError, WireError):
            self._lose_launcher()

    def _obey(self, message: Message) -> None:
        match message:
            case Probe(addresses, port) if (addresses, port) == (self._facts.addresses, self._probed.port):
                pass  # sent to all alike: node 0 answers the others, and need not ask
            case Probe(addresses, port) if self._state is State.WAITING:
                self._up(facts.probe(addresses, port))
            case PlanPiece(text, last) if self._state is State.WAITING:
                self._plan_text += text
                if last:
                    self._start(plan_from_json(self._plan_text, self._index))
            case Stop(number, grace_s, census_s):
                self._ask(census_s, partial(self._stop, number, grace_s))
            case Census(timeout_s, with_flight):
                self._ask(timeout_s, lambda: None, with_flight=with_flight)
            case Signal(signal.SIGKILL):
                self._ranks.signal_groups(signal.SIGKILL)
            case Signal(number):
                self._ranks.signal(number)
            case RankSignal(rank, number):
                self._ranks.signal(number, rank)
            case Stdin():
                self._ranks.feed(message)
            case Heartbeat(sent_ns):
                self._up(Heartbeat(time.time_ns(), sent_ns))
            case _:
                raise WireError(f"{type(message).__name__} is not for an agent in state {self._state.name}")

    def _lose_launcher(self) -> None:
        """The dead-man's switch: whoever started this job is gone, so the job ends."""
        if not self._launcher_lost:
            self._launcher_lost = True
            for fd in {self._link.read_fd, self._link.write_fd} & set(self._selector.get_map()):
                self._selector.unregister(fd)
            self._stop(signal.SIGTERM, orphan_grace_s(self._plan.lease_s) if self._plan else 0.0)

    def _watch_backlog(self) -> None:
        """Wake when the launcher takes more, while something waits for it; have ranks wait for it as well."""
        if self._plan is not None and self._plan.keeps_output:
            is_late = self._link.is_full or (self._ranks.are_held and not self._link.has_room)
            self._ranks.hold(are_held=is_late and self._state is State.RUNNING)
        watched = self._link.write_fd in self._selector.get_map()
        wanted = self._link.has_backlog and not self._launcher_lost
        if wanted and not watched:
            self._selector.register(self._link.write_fd, selectors.EVENT_WRITE, self._flush)
        elif watched and not wanted:
            self._selector.unregister(self._link.write_fd)

    def _flush(self) -> None:
        try:
            self._link.flush()
        except LinkClosedError:
            self._lose_launcher()

    def _last_flush(self, goodbye: Goodbye) -> None:
        """Let the launcher read the end of the story; it may be slow, but not for ever."""
        deadline = time.monotonic() + _LAST_FLUSH_S
        try:
            self._link.send_dropped()
            self._link.send(goodbye)
            while self._link.has_backlog and not self._launcher_lost and time.monotonic() < deadline:
                select.select([], [self._link.write_fd], [], 0.5)
                if self._link.flush():
                    deadline = time.monotonic() + _LAST_FLUSH_S
        except LinkClosedError:
            return

    # -- ranks

    def _start(self, plan: NodePlan) -> None:
        self._plan = plan
        self._state = State.RUNNING
        if plan.keeps_output:
            self._link.max_backlog_bytes = min(self._link.max_backlog_bytes, _HELD_BACKLOG_BYTES)
            self._link.max_dropless_bytes = float("inf")  # what is read although ranks are held is little
        self._heard_at = time.monotonic()
        if not plan.hears_launcher:
            self._beat_s = _UNHEARD_BEAT_S
            self._beat_at = self._heard_at + self._beat_s
        self._selector.unregister(self._probed.fd)
        self._probed.close()
        self._cgroup = RankCgroup(plan.node_id)
        self._guard = Guard(plan.node_id, self._cgroup, None if plan.hears_launcher else self._link.write_fd)
        self._observer = Observer(plan.node_id, self._ranks.by_pid, [rank.slot for rank in plan.ranks])
        refusal = obstacle(plan) or claim_port(plan, self._port_claims)
        if refusal is None:
            plan, found = engine.choose(plan)
            if isinstance(found, Refused):
                refusal = found
            else:
                self._up(found)
        refusal = refusal or self._ranks.start(plan, self._observer.folder, self._cgroup)
        if refusal is not None:
            self._up(refusal)
            self._stop(signal.SIGKILL, 0.0)

    def _pass_on(self, rank: int, stream: int, data: bytes) -> None:
        if not self._launcher_lost:
            try:
                self._link.send_output(rank, stream, data)
            except LinkClosedError:
                self._lose_launcher()

    def _ask(self, census_s: float, then: Callable[[], None], *, with_flight: bool = False) -> None:
        """Do it after a look at where the ranks are, for so long at most."""
        if self._observer is not None and self._state is State.RUNNING and census_s > 0:
            self._observer.ask(census_s, then, with_flight=with_flight)
        else:
            then()

    def _stop(self, number: int, grace_s: float) -> None:
        """Ask all ranks at once, and set the hour at which nobody is asked any more."""
        self._state = State.STOPPING
        self._link.max_dropless_bytes = 2 * self._link.max_backlog_bytes  # nothing may keep ranks from ending
        self._ranks.signal_groups(number)
        self._ranks.signal_groups(signal.SIGCONT)
        kill_at = time.monotonic() + grace_s
        self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)

    # -- signals to the agent itself

    def _take_signals(self) -> None:
        for number in self._signals.take():
            if number == signal.SIGCHLD:
                self._ranks.reap(ended_by_us=self._state is State.STOPPING)
            elif number in NOTICE_SIGNALS:
                self._ranks.signal(number)
            elif number == CENSUS:
                self._ask(CENSUS_S, lambda: None)
            elif number == CENSUS_AND_TERM and self._plan is not None:
                self._ask(CENSUS_S, partial(self._stop, signal.SIGTERM, self._plan.grace_s))
            elif number in _STOP_SIGNALS:
                if self._state is State.RUNNING:
                    self._up(Preempted(number))
                self._stop(number, self._plan.grace_s if self._plan else 0.0)


def main() -> int:
    """Run an agent on descriptors 0 and 1.

    argv: the port asked about, with the job's id; this agent's place in the list of plans, or `env:NAME` for
    the variable that tells it; and the plans as JSON, where they cannot come over stdin.
    """
    os.environ.pop("DSLAUNCH_JOB_KEY", None)  # it is the launchers', not the ranks'
    _, asked, place, *plans = sys.argv
    port, _, job_id = asked.partition("/")
    index = int(os.environ[place[4:]] if place.startswith("env:") else place)
    Agent(Link(0, 1), index).run(int(port), job_id, "".join(plans))
    return 0
