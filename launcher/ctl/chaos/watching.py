"""What lives of a job on all hosts, as watchers there tell it while the trials go on."""

from __future__ import annotations

import inspect
import json
import threading
import time
from dataclasses import dataclass, replace
from types import TracebackType

from dslaunch.launcher.ctl.chaos import watch
from dslaunch.launcher.ctl.chaos.job import Job, payload_request
from dslaunch.launcher.errors import LaunchError
from dslaunch.launcher.request import LaunchRequest

_HINT = "try dslaunch with the same options about hosts"
_SPARE_S = 10.0
"""Beyond the launcher's own time for hosts to answer: its words about them are better than ours."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many processes of a job live, by what all watchers said last, and since when on our clock."""

    num_alive: int
    since_s: float


class Watching:
    """A launch of one watcher on each host, for as long as the block lasts."""

    def __init__(self, request: LaunchRequest, num_hosts: int) -> None:
        self._request = replace(request, grace_s=1.0)
        self._num_hosts = num_hosts
        self._changed = threading.Condition()
        self._views: dict[str, dict[str, int]] = {}
        self._nodes: set[str] = set()
        self._since_s: dict[str, float] = {}

    def __enter__(self) -> Watching:
        """Raises LaunchError where not every host can be watched."""
        self._job = Job(payload_request(self._request, inspect.getsource(watch)), self._on_line)
        deadline = time.monotonic() + self._request.start_timeout_s + _SPARE_S
        with self._changed:
            while len(self._nodes) < self._num_hosts:
                if self._job.process.poll() is not None or time.monotonic() > deadline:
                    said = self._job.complaint
                    self._job.close()
                    raise LaunchError(f"the hosts cannot be watched: {said}", _HINT)
                self._changed.wait(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._job.close()

    def _on_line(self, line: str) -> None:
        word, _, text = line.partition(" ")
        if word != watch.WATCH_LINE:
            return
        report = json.loads(text)
        with self._changed:
            before = self._total()
            # hosts that are containers of one machine may see each other's processes: they count once
            self._views[report["view"]] = report["counts"]
            self._nodes.add(report["node"])
            now = self._total()
            for mark in before.keys() | now.keys():
                if before.get(mark) != now.get(mark):
                    self._since_s[mark] = time.monotonic()
            self._changed.notify_all()

    def _total(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for counts in self._views.values():
            for mark, count in counts.items():
                total[mark] = total.get(mark, 0) + count
        return total

    def count(self, mark: str) -> Count:
        """Of the job whose ranks carry `mark`. Raises LaunchError where the watchers are gone themselves."""
        if self._job.process.poll() is not None:
            raise LaunchError(f"the hosts are not watched any more: {self._job.complaint}", _HINT)
        with self._changed:
            return Count(self._total().get(mark, 0), self._since_s.get(mark, 0.0))
