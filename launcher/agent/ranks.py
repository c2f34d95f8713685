"""The node's ranks as one thing: started together, read and fed, signalled, and collected."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dslaunch.launcher.agent import binding, evidence
from dslaunch.launcher.agent.cgroup import RankCgroup
from dslaunch.launcher.agent.hook import HookFolder
from dslaunch.launcher.agent.process import RankProcess
from dslaunch.launcher.node_plan import NodePlan
from dslaunch.launcher.wire import Exited, Message, Refused, Started, Stdin

_DRAIN_READS = 64
"""Reads of one pipe in a row, 64 KiB each: a flooding grandchild must not hold the agent."""


class Ranks:
    """Empty until `start`. What they say and how they end is told through the callbacks, never by a raise."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        tell: Callable[[Message], None],
        tell_output: Callable[[int, int, bytes], None],
    ) -> None:
        """`tell_output` takes a rank, its stream (1 or 2) and what it wrote there."""
        self._selector = selector
        self._tell = tell
        self._tell_output = tell_output
        self._oom_counts = evidence.oom_counts()
        self._by_pid: dict[int, RankProcess] = {}
        self._are_held = False

    @property
    def by_pid(self) -> Mapping[int, RankProcess]:
        """A view that grows as they are started."""
        return self._by_pid

    @property
    def have_all_ended(self) -> bool:
        return all(process.returncode is not None for process in self._by_pid.values())

    def start(self, plan: NodePlan, folder: HookFolder | None, cgroup: RankCgroup) -> Refused | None:
        """All of them in `cgroup`, or why one cannot be started: then those before it run."""
        cores: Sequence[Sequence[int]] = [()] * len(plan.ranks)
        try:
            if plan.bound_cores is not None:
                cores = binding.plan_binding(plan.bound_cores, len(plan.ranks))
        except (OSError, ValueError) as error:
            return Refused(f"ranks cannot be bound to cores: {error}", "see --bind_core_list")
        for rank, own_cores in zip(plan.ranks, cores, strict=True):
            try:
                process = RankProcess(plan, rank, own_cores, folder, cgroup)
            except (OSError, ValueError, UnicodeError) as error:
                return Refused(f"rank {rank.rank} cannot be started: {error}", "check the program")
            self._by_pid[process.pid] = process
            self._listen(process)
            self._tell(Started(rank.rank, process.pid))
        return None

    # -- what they say, and are told

    @property
    def are_held(self) -> bool:
        return self._are_held

    def hold(self, *, are_held: bool) -> None:
        """Whether to leave in their pipes what they write, so that they wait once those are full."""
        if are_held == self._are_held:
            return
        self._are_held = are_held
        for process in self._by_pid.values():
            if are_held:
                for fd in process.streams:
                    self._selector.unregister(fd)
            else:
                self._listen(process)

    def _listen(self, process: RankProcess) -> None:
        for fd in process.streams:
            self._selector.register(fd, selectors.EVENT_READ, partial(self._pass_on, process, fd))

    def _pass_on(self, process: RankProcess, fd: int) -> bool:
        """One read's worth of a rank's output, up. False when the pipe holds no more for now."""
        data = process.read(fd)
        if data is None:
            if not self._are_held:
                self._selector.unregister(fd)
            process.close(fd)
            return False
        if data:
            self._tell_output(process.rank, process.streams[fd], data)
        return bool(data)

    def _drain(self, process: RankProcess) -> None:
        for fd in list(process.streams):
            for _ in range(_DRAIN_READS):
                if not self._pass_on(process, fd):
                    break

    def drain(self) -> None:
        """Pass on what their pipes still hold."""
        for process in self._by_pid.values():
            self._drain(process)

    def feed(self, stdin: Stdin) -> None:
        """Bytes for the stdin of one of them, as it takes them; those for another node's are passed over."""
        for process in self._by_pid.values():
            if process.rank == stdin.rank:
                process.feed(stdin.text.encode("utf-8", "surrogateescape"), last=stdin.last)
                fd = process.stdin_fd
                if fd is not None and fd not in self._selector.get_map():
                    self._selector.register(fd, selectors.EVENT_WRITE, partial(self._feed, process, fd))

    def _feed(self, process: RankProcess, fd: int) -> None:
        if not process.feed_rest():
            self._selector.unregister(fd)
            process.close_fed_stdin()

    # -- how they end

    def signal(self, number: int, rank: int | None = None) -> None:
        """To each rank's own process, or to that of one rank."""
        for process in self._by_pid.values():
            if rank is None or process.rank == rank:
                process.signal(number)

    def signal_groups(self, number: int) -> None:
        """To each rank and what it started in its group."""
        for process in self._by_pid.values():
            process.signal_group(number)

    def reap(self, *, ended_by_us: bool) -> None:
        """Collect every child that ended: ranks are reported, adopted orphans only buried."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            process = self._by_pid.get(pid)
            if process is not None:
                self._bury(process, os.waitstatus_to_exitcode(status), ended_by_us)

    def _bury(self, process: RankProcess, returncode: int, ended_by_us: bool) -> None:
        now_ns = time.time_ns()
        process.reaped(returncode)
        self._drain(process)
        note = "" if ended_by_us else evidence.explain(returncode, process.pid, self._oom_counts)
        self._tell(Exited(process.rank, returncode, now_ns, note))
