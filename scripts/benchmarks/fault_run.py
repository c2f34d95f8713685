"""One job, one fault, and what is left of the job over time."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from benchmarks import peers
from benchmarks.fault_kinds import names_cause
from benchmarks.fault_subjects import Scene, Subject
from benchmarks.marked import MARKER, Found, Marked, parent, rank_of
from benchmarks.process_tree import RANK_LINE, BenchmarkError
from dslaunch.launcher.ctl.chaos.faults import Fault

WATCH_S = 35.0
"""Longer than the grace of 30 s that most launchers have."""
_START_S = 90.0
_CLOSELY_S = 4.0
_POLL_S, _LAZY_POLL_S = 0.02, 0.2
_LAST_WORDS = 3000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a fault, in seconds since it.

    Attributes:
        exit_s: until the command ended; None where it had not, after WATCH_S.
        exit_code: as a shell gives it.
        gone_s: until no process of the job was left on living hosts; None where some were.
        cut_gone_s: the same of the host that was cut off.
        num_orphans: processes left after WATCH_S, on living and cut-off hosts.
        is_named: whether the cause was named; None where nobody could name it.
        said: the last words.
    """

    exit_s: float | None
    exit_code: int | None
    gone_s: float | None
    cut_gone_s: float | None
    num_orphans: int
    is_named: bool | None
    said: str


class FaultRun:
    """Start the job, inflict the fault, watch. Ends everything of it on `close`."""

    def __init__(self, subject: Subject, fault: Fault, scene: Scene) -> None:
        self._subject = subject
        self._fault = fault
        self._scene = scene
        cluster = scene.cluster
        workers = cluster.workers if cluster else ()
        self._host = workers[-1] if workers else ""
        names = {f"/run/netns/{cluster.layout.netns(host)}": host for host in workers} if cluster else {}
        self._marked = Marked(scene.job, names)
        self._host_names = (self._host, cluster.ip(self._host)) if cluster else ()
        self._folder = tempfile.mkdtemp()
        self._victim_rank = -1
        self._faulted_at = 0.0
        self._exit_s: float | None = None
        self._gone_s: dict[bool, float] = {}
        self._left: list[Found] = []

    def start(self) -> None:
        """Raises BenchmarkError unless all ranks come up."""
        with self._file("out").open("wb") as out, self._file("err").open("wb") as err:
            self._process = subprocess.Popen(
                self._subject.argv(self._scene),
                env={**peers.environ(), **self._subject.environ, MARKER: self._scene.job},
                cwd=self._prepared_folder(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while self._file("out").read_bytes().count(RANK_LINE) < self._scene.num_ranks:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise BenchmarkError(f"{self._subject.name}: not all ranks came up\n{self._said()}")
            time.sleep(_POLL_S)

    def inflict(self) -> None:
        """The victim is looked up first, so that only the fault itself is inside the time."""
        ranks = {rank_of(found.pid): found.pid for found in self._marked.find() if found.host == self._host}
        self._victim_rank, victim = max((rank, pid) for rank, pid in ranks.items() if rank is not None)
        agent = parent(victim)
        command = parent(agent) if self._subject.is_by_hand else self._process.pid
        self._faulted_at = time.monotonic()
        match self._fault:
            case Fault.EXIT_HEEDED | Fault.EXIT:
                os.kill(victim, signal.SIGUSR1)
            case Fault.KILL_RANK:
                os.kill(victim, signal.SIGKILL)
            case Fault.KILL_AGENT:
                os.kill(agent, signal.SIGKILL)
            case Fault.KILL_CLI | Fault.TERM_CLI | Fault.HUP_CLI:
                os.kill(command, self._fault.signal)
            case Fault.INT_CLI if self._subject.is_by_hand:
                os.kill(command, signal.SIGINT)
            case Fault.INT_CLI:
                os.killpg(command, signal.SIGINT)
            case Fault.HOST_KILLED:
                self._scene.hosts.kill(self._host)
            case Fault.HOST_CUT:
                self._scene.hosts.cut(self._host)
            case Fault.KILL_WRAPPER | Fault.KILL_TOOL:
                raise BenchmarkError(f"{self._fault.value} is not measured here")

    def watch(self, closely: bool) -> bool:
        """Whether all has ended, after a look for a few seconds (`closely`) or for the rest of WATCH_S."""
        until = self._faulted_at + (_CLOSELY_S if closely else WATCH_S)
        while True:
            if self._exit_s is None and self._process.poll() is not None:
                self._exit_s = time.monotonic() - self._faulted_at
            self._left = self._marked.find()
            now = time.monotonic()
            self._note_gone(now - self._faulted_at)
            if (self._exit_s is not None and not self._left) or now > until:
                return self._exit_s is not None and not self._left
            time.sleep(_POLL_S if closely else _LAZY_POLL_S)

    def outcome(self) -> Outcome:
        """After the last `watch`."""
        code = self._process.returncode
        said = self._said()
        return Outcome(
            exit_s=self._exit_s,
            exit_code=code if code is None or code >= 0 else 128 - code,
            gone_s=self._gone_s.get(False),
            cut_gone_s=self._gone_s.get(True) if self._fault is Fault.HOST_CUT else None,
            num_orphans=len([found for found in self._left if found.pid != self._process.pid]),
            is_named=names_cause(self._told_fault, said, self._victim_rank, self._host_names),
            said=said,
        )

    def close(self) -> None:
        """End what is left, and undo the fault."""
        self._marked.kill()
        with contextlib.suppress(AttributeError):  # it did not start
            self._process.kill()
            self._process.wait()
        if self._scene.cluster is not None:
            self._scene.cluster.restore()  # what a host that boots starts is no longer the job's
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _told_fault(self) -> Fault:
        """To the other commands of a job started by hand, a command that is killed is a lost host."""
        is_lost = self._fault is Fault.KILL_CLI and self._subject.is_by_hand
        return Fault.HOST_KILLED if is_lost else self._fault

    def _note_gone(self, since_fault_s: float) -> None:
        """When nothing was seen first, and never since: on living hosts, and on the one that was cut off."""
        seen = {self._is_cut(found) for found in self._left}
        for is_cut in (True, False):
            if is_cut in seen:
                self._gone_s.pop(is_cut, None)
            else:
                self._gone_s.setdefault(is_cut, since_fault_s)

    def _is_cut(self, found: Found) -> bool:
        return self._fault is Fault.HOST_CUT and found.host == self._host

    def _prepared_folder(self) -> str:
        """DeepSpeed forwards NCCL_* only where it finds a GPU, but always what this file says."""
        Path(self._folder, ".deepspeed_env").write_text(f"{MARKER}={self._scene.job}\n")
        return self._folder

    def _file(self, name: str) -> Path:
        return Path(self._folder, name)

    def _said(self) -> str:
        """stderr, where ranks say nothing, and of stdout what is no rank's."""
        out = self._file("out").read_bytes().splitlines()
        lines: Collection[bytes] = [line for line in out if RANK_LINE not in line]
        said = b"\n".join(lines) + b"\n" + self._file("err").read_bytes()
        return said.decode(errors="replace")[-_LAST_WORDS:]
