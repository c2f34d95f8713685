"""What every tool for groups promises, tried on each of them for real, and on a stub of each."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from nasty_arguments import NASTY

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import Group, GroupBackend, GroupCommand, SessionEnd

if TYPE_CHECKING:
    from conftest import GroupLane, GroupRan

PYTHON = (sys.executable, "-I", "-S", "-u", "-c")
SOURCE = Path(__file__).parents[3] / "src"
ARGUMENTS = [word for word in NASTY if word != "%n"]  # which is pdsh's own
SHOW_ARGUMENTS = "import os, sys; [print(os.fsencode(word).hex()) for word in sys.argv[1:]]"


def index_expression(lane: GroupLane) -> tuple[str, str]:
    """Python that finds the index, and the word of argv it needs for that."""
    word = lane.make().index_word
    name = word.removeprefix("env:")
    return ("sys.argv[1]", word) if name == word else (f"os.environ[{name!r}]", "")


def test_nasty_arguments_arrive_unchanged(group_lane: GroupLane) -> None:
    words = [os.fsencode(word) for word in ARGUMENTS]
    words.append(bytes(range(1, 256)))
    dice = random.Random(7)
    words += [bytes(dice.choices(range(1, 256), k=dice.randrange(40))) for _ in range(200)]
    ran = group_lane.run(*PYTHON, SHOW_ARGUMENTS, *words)
    expected = "".join(f"{word.hex()}\n" for word in words).encode()
    assert ran.outputs == (expected, expected, expected)
    assert ran.end.returncode == 0


def test_without_a_colon_too(group_lane: GroupLane) -> None:
    words = [os.fsencode(word) for word in ARGUMENTS if word != ":"]
    expected = "".join(f"{word.hex()}\n" for word in words).encode()
    assert group_lane.run(*PYTHON, SHOW_ARGUMENTS, *words).outputs == (expected, expected, expected)


def test_every_host_runs_one_process_that_knows_its_place(group_lane: GroupLane) -> None:
    index, word = index_expression(group_lane)
    script = f"import os, sys; print({index}, os.environ.get('STUB_HOST') or os.uname().nodename)"
    ran = group_lane.run(*PYTHON, script, word)
    places = [line.split() for line in ran.outputs]
    assert [place[0] for place in places] == [b"0", b"1", b"2"]
    names = [host.name.encode() for host in group_lane.hosts]
    if len({place[1] for place in places}) > 1:  # three names of one machine, where it has no namespaces
        assert [place[1] for place in places] == names


SIZES = [0, 1, 1022, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 65537, *[30000] * 3]
LINES = """
import os, sys
index = {index}
for size in {sizes}:
    os.write(1, (index * size + "\\n").encode())
for number in range(3000):
    print(index, number, "and what else there is", flush=not number % 100)
print("[1,9]<stderr>: worker-0: 0: <dslaunch:9")
"""


def test_output_is_told_apart(group_lane: GroupLane) -> None:
    index, word = index_expression(group_lane)
    ran = group_lane.run(*PYTHON, LINES.format(index=index, sizes=SIZES), word)
    for place, output in enumerate(ran.outputs):
        expected = [str(place) * size for size in SIZES]
        expected += [f"{place} {number} and what else there is" for number in range(3000)]
        expected += ["[1,9]<stderr>: worker-0: 0: <dslaunch:9"]
        assert output.decode().splitlines() == expected


def test_lines_come_whole(group_lane: GroupLane) -> None:
    async def work(backend: GroupBackend) -> list[bytes]:
        script = "import sys, time\nfor i in range(300): print('x' * 7000)"
        group = await backend.start(group_lane.command(*PYTHON, script))

        async def read(index: int) -> list[bytes]:
            return [chunk async for chunk in group.output(index)]

        chunks = await asyncio.gather(read(0), read(1), read(2))
        return [chunk for host in chunks for chunk in host]

    chunks = group_lane.drive(work)
    assert all(chunk.endswith(b"\n") for chunk in chunks)
    assert sum(len(chunk) for chunk in chunks) == 3 * 300 * 7001


def test_a_host_that_is_read_late_misses_nothing(group_lane: GroupLane) -> None:
    async def work(backend: GroupBackend) -> None:
        script = "import sys\nfor i in range(1500): print('y' * 999)"
        group = await backend.start(group_lane.command(*PYTHON, script))
        first = await anext(aiter(group.output(2)))
        ran = await group_lane.finish(group)
        assert len(ran.outputs[0]) == len(ran.outputs[1]) == 1_500_000
        assert len(first) + len(ran.outputs[2]) == 1_500_000

    group_lane.drive(work)


async def read_all_until(group: Group, end: bytes) -> list[bytes]:
    """Output of every host up to a mark."""

    async def read(index: int) -> bytes:
        data = b""
        async for chunk in group.output(index):
            data += chunk
            if data.endswith(end):
                return data
        raise AssertionError(f"host {index} ended before {end!r}: {data!r}")

    return list(await asyncio.gather(read(0), read(1), read(2)))


ECHO = "import sys; [print(line.hex()) for line in sys.stdin.buffer]; print('eof')"


def test_stdin_reaches_all_as_it_is_written(group_lane: GroupLane) -> None:
    async def work(backend: GroupBackend) -> None:
        command = group_lane.command(*PYTHON, ECHO)
        group = await backend.start(GroupCommand(command.hosts, command.argv, b"first\n"))
        for line in (b"first\n", bytes(range(256)).replace(b"\n", b"") + b"\n", b"z" * 300_000 + b"\n"):
            if line != b"first\n":
                group.write(line)
            assert await read_all_until(group, b"\n") == [f"{line.hex()}\n".encode()] * 3
        group.write(b"last")
        group.close_stdin()
        ran = await group_lane.finish(group)
        assert ran.outputs == (b"6c617374\neof\n",) * 3
        assert ran.end.returncode == 0

    if not group_lane.make().has_stdin:
        pytest.skip("passes no stdin on")
    group_lane.drive(work)


HOLD = "exec 9>{fifo}; echo up; cat >/dev/null"


@pytest.mark.parametrize("way", ["close_stdin", "kill", "close"])
def test_the_processes_end(
    group_lane: GroupLane, way: str, fifo: Callable[[], bytes], tmp_path: Path
) -> None:
    async def work(backend: GroupBackend) -> SessionEnd:
        group = await backend.start(group_lane.command("sh", "-c", HOLD.format(fifo=tmp_path / "fifo")))
        assert await read_all_until(group, b"up\n") == [b"up\n"] * 3
        match way:
            case "close_stdin":
                group.close_stdin()
            case "kill":
                group.kill()
            case _:
                await backend.close()
        return await asyncio.wait_for(group.wait(), 20)

    end = group_lane.drive(work)
    if way == "kill":
        assert end.returncode == -signal.SIGKILL
    assert fifo() == b""


LAUNCHER = """
import asyncio, importlib, json, sys
from pathlib import Path
from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import GroupCommand

async def main(lane, script):
    module, kind, options, hosts = json.loads(lane)
    options = {k: Path(v) if k == "ssh_config" else v for k, v in options.items()}
    backend = getattr(importlib.import_module("dslaunch.runner_backends." + module), kind)(**options)
    hosts = tuple(Host(name, (0,)) for name in hosts)
    group = await backend.start(GroupCommand(hosts, ("sh", "-c", script), b""))
    for index in range(len(hosts)):
        print((await anext(aiter(group.output(index)))).decode(), end="", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_killed_launcher_leaves_nothing(
    group_lane: GroupLane, fifo: Callable[[], bytes], tmp_path: Path
) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, group_lane.as_json, HOLD.format(fifo=tmp_path / "fifo")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    with launcher:
        assert launcher.stdout is not None
        assert [launcher.stdout.readline() for _ in range(3)] == [b"up\n"] * 3
        launcher.kill()
    assert fifo() == b""


def test_an_exit_code_is_told_and_ends_nobody_else(
    group_lane: GroupLane, fifo: Callable[[], bytes], tmp_path: Path
) -> None:
    index, word = index_expression(group_lane)
    script = f"""
import os, sys, time
if {index} == '1':
    fifo = open({str(tmp_path / "fifo")!r}, 'wb')
    print('leaving')
    sys.exit(3)
print('up')
while not os.path.exists({str(tmp_path / "gate")!r}):
    time.sleep(0.05)
print('survived')
"""

    async def work(backend: GroupBackend) -> GroupRan:
        group = await backend.start(group_lane.command(*PYTHON, script, word))
        assert await read_all_until(group, b"\n") == [b"up\n", b"leaving\n", b"up\n"]
        await asyncio.to_thread(fifo)
        (tmp_path / "gate").touch()
        return await group_lane.finish(group)

    ran = group_lane.drive(work)
    assert ran.outputs == (b"survived\n", b"", b"survived\n")
    assert ran.end.returncode == 3


def test_an_unknown_host_is_named(group_lane: GroupLane) -> None:
    hosts = (Host("no-such-host", (0,)), *group_lane.hosts[:1])

    async def work(backend: GroupBackend) -> GroupRan:
        group = await backend.start(group_lane.command("true", hosts=hosts))
        end = asyncio.ensure_future(group_lane.finish(group, 2))
        if "mpich" in group_lane.name:  # Hydra says what is wrong, and waits for ever
            await asyncio.wait([end], timeout=1)
            group.close_stdin()
        return await end

    ran = group_lane.drive(work)
    assert ran.end.returncode not in (0, None)
    assert "no-such-host" in ran.end.stderr or "Invalid node name" in ran.end.stderr


def test_everything_is_allowed_after_the_end(group_lane: GroupLane) -> None:
    async def work(backend: GroupBackend) -> None:
        group = await backend.start(group_lane.command("echo", "done"))
        ran = await group_lane.finish(group)
        assert ran.outputs == (b"done\n",) * 3
        group.close_stdin()
        group.kill()
        group.write(b"more")
        assert await group.wait() == ran.end

    group_lane.drive(work)
