"""Rank lines on the console: who is shown, with which prefix, folded or as they come."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from dslaunch.hostfile import fold_names
from dslaunch.launcher.console import Console
from dslaunch.launcher.fold import Folded, Folder, ranges
from dslaunch.launcher.plan import LaunchPlan
from dslaunch.launcher.streams import Lines

_MAX_PREFIXES = 1000
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


class RankLines:
    """Lines of the shown ranks, to stdout and stderr."""

    def __init__(self, console: Console, plan: LaunchPlan, shown: frozenset[int], *, fold: bool) -> None:
        self._console = console
        self._hosts = {rank.rank: node.host for node, rank in plan.ranks}
        self._shown = shown
        self._folded_prefixes: dict[tuple[int, tuple[int, ...]], bytes] = {}
        self._folder = Folder(shown) if fold and len(shown) > 1 else None
        colour = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._coloured = {fd for fd in (1, 2) if colour and os.isatty(fd)}

    def show(self, what: Lines) -> None:
        """A single shown rank owns the terminal: what it writes is shown as it is, progress bars included."""
        if what.rank not in self._shown:
            return
        if len(self._shown) == 1:
            self._console.write_lines(what.stream, what.raw)
        elif self._folder is not None:
            self._show_folded(self._folder.add(what.rank, what.stream, what.lines, time.monotonic()))
        elif what.lines:
            prefix = self._prefix(what.stream, self._hosts[what.rank], str(what.rank), what.rank)
            self._console.write_lines(what.stream, b"".join(prefix + line + b"\n" for line in what.lines))

    def on_tick(self) -> None:
        """Let lines go that have waited long enough for others."""
        if self._folder is not None:
            self._show_folded(self._folder.expire(time.monotonic()))

    def flush(self) -> None:
        """Let every line go."""
        if self._folder is not None:
            self._show_folded(self._folder.flush())

    def _show_folded(self, folded: Iterable[Folded]) -> None:
        for what in folded:
            prefix = self._folded_prefix(what.stream, what.ranks)
            self._console.write_lines(what.stream, prefix + what.line + b"\n")

    def _folded_prefix(self, stream: int, ranks: tuple[int, ...]) -> bytes:
        """The same few sets of ranks print most lines."""
        prefix = self._folded_prefixes.get((stream, ranks))
        if prefix is None:
            hosts = fold_names(dict.fromkeys(self._hosts[rank] for rank in ranks))
            prefix = self._prefix(stream, hosts, ranges(ranks), ranks[0])
            if len(self._folded_prefixes) < _MAX_PREFIXES:
                self._folded_prefixes[stream, ranks] = prefix
        return prefix

    def _prefix(self, stream: int, hosts: str, ranks: str, colour: int) -> bytes:
        prefix = f"[{hosts}:{ranks}]"
        if stream in self._coloured:
            prefix = f"\x1b[{_COLOURS[colour % len(_COLOURS)]}m{prefix}\x1b[0m"
        return f"{prefix} ".encode()
