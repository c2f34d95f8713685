"""The local backend's own promises: a session of its own, our environment, and its errors word for word."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dslaunch.hostfile import Host
from dslaunch.runner_backends.child import Child
from dslaunch.runner_backends.command import NodeCommand
from dslaunch.runner_backends.errors import BackendError
from dslaunch.runner_backends.local import LocalBackend

HERE = Host("worker-0", (0,))


def refused(*argv: str) -> tuple[str, str]:
    """How the backend words its refusal of a command."""
    with pytest.raises(BackendError) as caught:
        asyncio.run(LocalBackend().start(NodeCommand(HERE, argv, b"")))
    return str(caught.value), caught.value.hint


def test_no_such_program() -> None:
    assert refused("no-such-program") == (
        "worker-0: cannot run 'no-such-program': no such program",
        "check the spelling, install it, or give its full path",
    )


def test_permission_denied(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    assert refused(str(script)) == (
        f"worker-0: cannot run '{script}': permission denied",
        f"make it executable (chmod +x {script}), or run it through its interpreter",
    )


def test_missing_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert refused(str(script)) == (
        f"worker-0: cannot run '{script}': its interpreter was not found",
        f"look at the first line of {script}, after the #!",
    )


def test_not_executable_format(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"\x7fELF")
    script.chmod(0o755)
    assert refused(str(script)) == (
        f"worker-0: cannot run '{script}': not in an executable format",
        "give it a #! line, or build it for this machine",
    )


def test_too_long() -> None:
    assert refused("true", "x" * 200_000) == (
        "worker-0: cannot run 'true': the argument list is too long",
        "put the arguments in a file",
    )


def test_nul() -> None:
    assert refused("true", "a\0b") == (
        "worker-0: cannot run 'true': embedded null byte",
        "an argument holds a character that no command line can carry, such as NUL: remove it",
    )


async def first_chunk(session: Child) -> bytes:
    return await anext(session.output())


def test_the_process_leads_a_session_of_its_own() -> None:
    async def main() -> None:
        backend = LocalBackend()
        session = await backend.start(NodeCommand(HERE, ("sh", "-c", "echo $$; exec cat"), b""))
        pid = int(await first_chunk(session))
        assert os.getsid(pid) == os.getpgid(pid) == pid
        await backend.close()
        assert (await session.wait()).returncode == 0

    asyncio.run(main())


def test_the_environment_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSLAUNCH_TEST", "a b\n$c")

    async def main() -> bytes:
        session = await LocalBackend().start(NodeCommand(HERE, ("printenv", "DSLAUNCH_TEST"), b""))
        data = b"".join([chunk async for chunk in session.output()])
        await session.wait()
        return data

    assert asyncio.run(main()) == b"a b\n$c\n"


def test_close_kills_what_ignores_eof() -> None:
    async def main() -> None:
        backend = LocalBackend(close_timeout_s=0.1)
        session = await backend.start(NodeCommand(HERE, ("sh", "-c", "echo up; exec yes"), b""))
        assert (await first_chunk(session)).startswith(b"up\n")
        await backend.close()
        assert (await session.wait()).returncode == -signal.SIGKILL

    asyncio.run(main())


def test_stderr_held_by_a_descendant_is_not_waited_for(fifo: Callable[[], bytes], tmp_path: Path) -> None:
    async def main() -> None:
        script = f"exec 3<&0; (cat <&3; echo eof > {tmp_path}/fifo) >/dev/null & echo last words >&2"
        session = await LocalBackend().start(NodeCommand(HERE, ("sh", "-c", script), b""))
        end = await asyncio.wait_for(session.wait(), 10)
        assert (end.returncode, end.stderr) == (0, "last words\n")

    asyncio.run(main())
    assert fifo() == b"eof\n"


def test_a_large_output_does_not_take_long() -> None:
    async def main() -> float:
        session = await LocalBackend().start(NodeCommand(HERE, ("head", "-c", "300000000", "/dev/zero"), b""))
        start = time.monotonic()
        assert sum([len(chunk) async for chunk in session.output()]) == 300_000_000
        await session.wait()
        return time.monotonic() - start

    # Twenty times what it takes on an idle machine, so that only a quadratic copy fails.
    assert asyncio.run(main()) < 20
