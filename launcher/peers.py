"""The other nodes of a job that was started by hand: told of this node's end, and telling of theirs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from dslaunch.launcher.coordination.link import Link, NodeEnd, PeerLost, Settled
from dslaunch.launcher.supervise import Input
from dslaunch.launcher.verdict import Cause, Interrupted, PeerEnded, RankFailed, Verdict, exit_code


class Peers:
    """One end of the coordination link, for the length of a run."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._listening: asyncio.Task[None] | None = None

    def start(self, post: Callable[[Input], None]) -> None:
        """Post another node's bad end when it becomes known."""

        async def listen() -> None:
            why = await self._link.stopped()
            is_cut_off = isinstance(why, PeerLost) and why.is_cut_off
            post(PeerEnded(why.cause.exit_code, tuple(why.cause.lines), is_cut_off))

        self._listening = asyncio.create_task(listen())

    def report(self, cause: Cause, lines: Sequence[str]) -> None:
        """This node is being stopped; where another is the cause, it knows."""
        if not isinstance(cause, PeerEnded):
            at_ns = cause.end.time_ns if isinstance(cause, RankFailed) else None
            self._link.report(NodeEnd(exit_code(cause), tuple(lines), at_ns))

    async def settle(self, verdict: Verdict, inputs: asyncio.Queue[Input]) -> Verdict:
        """The verdict that all nodes share, when all have ended or one has ended badly.

        While this waits, the user may end the job here; a second time leaves at once.
        """
        if verdict.cause is None:
            self._link.report(NodeEnd(verdict.exit_code))
        settling = asyncio.create_task(self._link.verdict())
        interrupts = 0
        while not settling.done() and interrupts < 2:
            typed = asyncio.create_task(inputs.get())
            await asyncio.wait((settling, typed), return_when=asyncio.FIRST_COMPLETED)
            match typed.result() if typed.done() else None:
                case Interrupted(number):
                    interrupts += 1
                    name = signal.Signals(number).name
                    self._link.report(NodeEnd(128 + number, (f"ended by {name}",)))
                    verdict = replace(verdict, cause=verdict.cause or Interrupted(number))
                case _:
                    typed.cancel()
        if settling.done():
            return _shared(verdict, settling.result())
        settling.cancel()
        return verdict

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)


def _shared(verdict: Verdict, settled: Settled) -> Verdict:
    if settled.cause is None:
        return verdict
    is_cut_off = isinstance(verdict.cause, PeerEnded) and verdict.cause.is_cut_off
    return replace(verdict, cause=PeerEnded(settled.exit_code, tuple(settled.cause.lines), is_cut_off))
