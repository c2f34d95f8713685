"""Agents that are started twice, by a tool that is none: when the first ones go, and the others come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from dslaunch.launcher import wire
from dslaunch.launcher.group_fleet import ArgvFleet, GroupSettings
from dslaunch.launcher.node_plan import NodePlan
from dslaunch.launcher.supervise import AgentClosed, FromAgent, Input
from dslaunch.runner_backends.command import GroupCommand, SessionEnd

READY = wire.Ready("a", 1, "3.11", ("10.0.0.1",), ("eth0",), False, 40001, 40002)
TAKEN_UP = wire.EngineFound("bundled", "")
PLAN = NodePlan("job", 0, "a", "/", "", {}, {}, (), None, None, (), 1.0, 15.0, True, "auto")


class Run:
    """One run of the tool: its agent says what it is given until the tool is ended."""

    def __init__(self, *said: wire.Message) -> None:
        self.said = asyncio.Queue[bytes]()
        self.ended = asyncio.Event()
        for message in said:
            self.said.put_nowait(wire.encode(message))

    async def output(self, index: int) -> AsyncIterator[bytes]:
        while not self.ended.is_set():
            ended = asyncio.create_task(self.ended.wait())
            said = asyncio.create_task(self.said.get())
            await asyncio.wait((ended, said), return_when=asyncio.FIRST_COMPLETED)
            if said.done():
                yield said.result()
            ended.cancel()
            said.cancel()

    def reason(self, index: int) -> str:
        return ""

    def returncode(self, index: int) -> int | None:
        return None

    def write(self, data: bytes) -> None:
        raise AssertionError("it has no way down")

    def close_stdin(self) -> None:
        self.ended.set()

    def kill(self) -> None:
        self.ended.set()

    async def wait(self) -> SessionEnd:
        await self.ended.wait()
        return SessionEnd(0, "")


class Tool:
    """Runs side by side, or, as in an allocation of one step, one after the other."""

    name = "tool"
    index_word = "%n"
    has_stdin = False

    def __init__(self, *, runs_together: bool) -> None:
        self._runs_together = runs_together
        self.runs: list[Run] = []

    def tool_argv(self, command: GroupCommand) -> tuple[str, ...]:
        return command.argv

    def tool_environment(self, command: GroupCommand) -> Mapping[str, str]:
        return {}

    async def start(self, command: GroupCommand) -> Run:
        if self.runs and not self._runs_together:
            await self.runs[0].ended.wait()
        self.runs.append(Run(READY))
        return self.runs[-1]

    async def close(self) -> None:
        for run in self.runs:
            run.kill()


class Launch:
    """A fleet of one host that has its plans, and what it has posted."""

    def __init__(self, tool: Tool, handover_s: float) -> None:
        settings = GroupSettings(
            1, ("python3",), 15.0, lambda plans: GroupCommand((), (plans,), b""), handover_s
        )
        self.fleet = ArgvFleet(tool, settings)
        self._posted = asyncio.Queue[Input]()
        self.fleet.start(self._posted.put_nowait)

    async def posted(self) -> Input:
        return await asyncio.wait_for(self._posted.get(), 30)

    async def begin(self) -> None:
        assert await self.posted() == FromAgent(0, READY)
        self.fleet.begin([PLAN])


def test_the_first_agents_stay_until_the_plan_is_taken_up() -> None:
    async def test() -> None:
        tool = Tool(runs_together=True)
        launch = Launch(tool, 30.0)
        await launch.begin()
        assert await launch.posted() == FromAgent(0, READY)  # of the second
        assert not tool.runs[0].ended.is_set()
        tool.runs[1].said.put_nowait(wire.encode(TAKEN_UP))
        assert await launch.posted() == FromAgent(0, TAKEN_UP)
        await asyncio.wait_for(tool.runs[0].ended.wait(), 30)
        assert not tool.runs[1].ended.is_set()
        tool.runs[1].close_stdin()
        assert isinstance(await launch.posted(), AgentClosed)
        await launch.fleet.close()

    asyncio.run(test())


def test_they_do_not_stay_in_the_others_way() -> None:
    async def test() -> None:
        tool = Tool(runs_together=False)
        launch = Launch(tool, 0.05)
        await launch.begin()
        assert await launch.posted() == FromAgent(0, READY)
        await launch.fleet.close()
        assert len(tool.runs) == 2

    asyncio.run(test())


@pytest.mark.parametrize("runs_together", [True, False])
def test_a_launch_that_is_stopped_in_between_ends_both(runs_together: bool) -> None:
    async def test() -> None:
        tool = Tool(runs_together=runs_together)
        launch = Launch(tool, 30.0)
        await launch.begin()
        launch.fleet.stop(wire.Stop(9, 0.0, 0.0), has_begun=True)
        while not isinstance(await launch.posted(), AgentClosed):
            pass
        await launch.fleet.close()
        assert all(run.ended.is_set() for run in tool.runs)

    asyncio.run(test())
