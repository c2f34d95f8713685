"""What every backend promises, tried on each of them for real."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nasty_arguments import TEXT

from dslaunch.runner_backends.command import Backend, Session

if TYPE_CHECKING:
    from conftest import Lane

T = TypeVar("T")


def drive(lane: Lane, work: Callable[[Backend], Coroutine[object, object, T]]) -> T:
    """Do something with a backend of a lane, and close it."""

    async def main() -> T:
        backend = lane.make()
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


async def read_until(session: Session, end: bytes) -> bytes:
    """Output up to a mark."""
    data = b""
    async for chunk in session.output():
        data += chunk
        if data.endswith(end):
            return data
    raise AssertionError(f"ended before {end!r}: {data!r}")


def argv_seen(lane: Lane, words: list[bytes]) -> list[bytes]:
    """The arguments, as a process on the host sees them."""
    ran = lane.run("printf", r"%s\0", *words)
    assert ran.end.returncode == 0, ran.end
    return ran.stdout.split(b"\0")[:-1]


def test_nasty_arguments_arrive_unchanged(lane: Lane) -> None:
    words = [os.fsencode(word) for word in TEXT]
    if lane.carries_any_bytes:
        words.append(bytes(range(1, 256)))
    assert argv_seen(lane, words) == words


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(words=st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\0", b"")), min_size=1, max_size=30))
def test_arguments_of_any_bytes_arrive_unchanged(lane: Lane, words: list[bytes]) -> None:
    if not lane.carries_any_bytes:
        words = [word.decode("utf-8", "replace").encode() for word in words]
    assert argv_seen(lane, words) == words


def test_stdin_arrives_and_stays_open(lane: Lane) -> None:
    async def work(backend: Backend) -> None:
        session = await backend.start(lane.command("cat", stdin=b"first\n"))
        assert await read_until(session, b"first\n") == b"first\n"
        session.write(b"\x00\xffsecond\n")
        assert await read_until(session, b"second\n") == b"\x00\xffsecond\n"
        session.write(b"third")
        session.close_stdin()
        assert [chunk async for chunk in session.output()] == [b"third"]
        assert (await session.wait()).returncode == 0

    drive(lane, work)


def test_fifty_megabytes_go_there_and_back(lane: Lane) -> None:
    data = os.urandom(1_000_003) * 50

    async def work(backend: Backend) -> None:
        session = await backend.start(lane.command("cat", stdin=data))
        session.close_stdin()
        digest, num_bytes = hashlib.sha256(), 0
        async for chunk in session.output():
            digest.update(chunk)
            num_bytes += len(chunk)
        assert (await session.wait()).returncode == 0
        assert num_bytes == len(data)
        assert digest.digest() == hashlib.sha256(data).digest()

    drive(lane, work)


def test_a_reader_that_starts_late_misses_nothing(lane: Lane) -> None:
    async def work(backend: Backend) -> None:
        slow = await backend.start(lane.command("head", "-c", "20000000", "/dev/zero"))
        quick = await backend.start(lane.command("echo", "done"))
        assert await read_until(quick, b"done\n")
        assert sum([len(chunk) async for chunk in slow.output()]) == 20_000_000
        assert (await slow.wait()).returncode == 0

    drive(lane, work)


def test_the_last_8_kib_of_stderr_are_kept(lane: Lane) -> None:
    ran = lane.run("sh", "-c", "echo out; seq 1 20000 >&2; exit 3")
    everything = "".join(f"{i}\n" for i in range(1, 20001))
    assert ran.stdout == b"out\n"
    assert ran.end.stderr == everything[-8192:]
    assert ran.end.returncode == 3


@pytest.mark.parametrize("status", [0, 1, 126, 255])
def test_exit_codes(lane: Lane, status: int) -> None:
    expected = None if status == 255 and not lane.tells_255 else status
    assert lane.run("sh", "-c", f"exit {status}").end.returncode == expected


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_signals(lane: Lane, number: signal.Signals) -> None:
    returncode = lane.run("sh", "-c", f"ulimit -c 0; kill -{int(number)} $$").end.returncode
    direct = -number if lane.tells_255 else None
    assert returncode == (128 + number if lane.has_forking_shell else direct)


def test_kill_gives_up_at_once(lane: Lane) -> None:
    async def work(backend: Backend) -> None:
        # The second cat holds stdout, and would keep it open.
        script = "exec 3<&0; cat <&3 & echo up; trap '' TERM; cat"
        session = await backend.start(lane.command("sh", "-c", script))
        assert await read_until(session, b"up\n")
        session.kill()
        end = await asyncio.wait_for(session.wait(), 10)
        assert end.returncode == (-signal.SIGKILL if lane.name == "local" else None)
        assert [chunk async for chunk in session.output()] == []

    drive(lane, work)


def test_everything_is_allowed_after_the_end(lane: Lane) -> None:
    async def work(backend: Backend) -> None:
        session = await backend.start(lane.command("true", stdin=b"x" * 5_000_000))
        end = await session.wait()
        assert end.returncode == 0
        session.write(b"more")
        session.close_stdin()
        session.write(b"more")
        session.close_stdin()
        session.kill()
        assert await session.wait() == end
        assert [chunk async for chunk in session.output()] == []

    drive(lane, work)


def test_writing_after_close_stdin_does_nothing(lane: Lane) -> None:
    async def work(backend: Backend) -> None:
        session = await backend.start(lane.command("cat", stdin=b"kept"))
        session.close_stdin()
        session.write(b"dropped")
        assert [chunk async for chunk in session.output()] == [b"kept"]

    drive(lane, work)


def test_many_sessions_at_once(lane: Lane) -> None:
    async def work(backend: Backend) -> None:
        async def one(number: int) -> bytes:
            session = await backend.start(lane.command("cat", stdin=b"%d" % number))
            session.close_stdin()
            data = b"".join([chunk async for chunk in session.output()])
            assert (await session.wait()).returncode == 0
            return data

        results = await asyncio.gather(*(one(i) for i in range(lane.num_at_once)))
        assert results == [b"%d" % i for i in range(lane.num_at_once)]

    drive(lane, work)


def test_close_sends_eof_to_what_still_runs(lane: Lane, fifo: Callable[[], bytes], tmp_path: Path) -> None:
    async def work(backend: Backend) -> Session:
        script = f"echo up; cat; echo eof > {tmp_path}/fifo"
        session = await backend.start(lane.command("sh", "-c", script))
        assert await read_until(session, b"up\n")
        await backend.close()
        await session.wait()
        await backend.close()
        return session

    drive(lane, work)
    assert fifo() == b"eof\n"


LAUNCHER = """
import asyncio, sys
from pathlib import Path
from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import NodeCommand

async def main(kind, config, host, *argv):
    if kind == "openssh":
        from dslaunch.runner_backends.openssh import OpenSshBackend
        backend = OpenSshBackend(Path(config))
    elif config:
        from dslaunch.runner_backends.ssh import SshBackend
        backend = SshBackend(Path(config))
    else:
        from dslaunch.runner_backends.local import LocalBackend
        backend = LocalBackend()
    session = await backend.start(NodeCommand(Host(host, (0,)), argv, b""))
    async for chunk in session.output():
        print(chunk.decode(), end="", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_killed_launcher_leaves_eof(
    lane: Lane, request: pytest.FixtureRequest, fifo: Callable[[], bytes], tmp_path: Path
) -> None:
    config = {
        "local": lambda: "",
        "embedded": lambda: str(request.getfixturevalue("hosts").hosts.ssh_config),
        "sshd": lambda: str(request.getfixturevalue("sshd").ssh_config),
        "openssh": lambda: str(request.getfixturevalue("sshd").ssh_config),
    }[lane.name]()
    script = f"echo up; cat; echo eof > {tmp_path}/fifo"
    source = Path(__file__).parents[2] / "src"
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, lane.name, config, lane.host.name, "sh", "-c", script],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    with launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"up\n"
        launcher.kill()
    assert fifo() == b"eof\n"
