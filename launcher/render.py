"""From the plan to what a backend runs: the agent's code as a zip, and the one line that starts it."""

from __future__ import annotations

import base64
import io
import zipfile
import zlib
from pathlib import Path

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import GroupCommand, NodeCommand

AGENT_MODULES = (
    "launcher/wire.py",
    "launcher/node_plan.py",
    "launcher/agent/binding.py",
    "launcher/agent/evidence.py",
    "launcher/agent/facts.py",
    "launcher/agent/guard.py",
    "launcher/agent/link.py",
    "launcher/agent/main.py",
    "launcher/agent/process.py",
    "launcher/agent/progress.py",
    "launcher/agent/ssh_watch.py",
    "launcher/agent/sweep.py",
)
_PACKAGES = ("__init__.py", "launcher/__init__.py", "launcher/agent/__init__.py")

_IMPORT = (
    'f=os.memfd_create("dslaunch-agent");os.write(f,b);'
    'sys.path.insert(0,"/proc/self/fd/%d"%f);'
    "from dslaunch.launcher.agent.main import main;sys.exit(main())"
)
STDIN_BOOTSTRAP = (
    "import os,sys;"
    "n=int(sys.argv.pop(1));b=bytearray();"
    'any(b.extend(c) or len(b)==n for c in iter(lambda:os.read(0,n-len(b)),b""));' + _IMPORT
)
"""Reads exactly the zip from stdin, imports the agent from it, and leaves what follows to the agent.

One line without single quotes, `!`, `$` or backslashes: single-quoted, it is the same to every login shell.
"""
ARGV_BOOTSTRAP = (
    "import os,sys,zlib,base64 as x;"
    "u=lambda t:zlib.decompress(x.b64decode(t));"
    "b=u(sys.argv.pop(1));sys.argv[3:]=[u(t).decode() for t in sys.argv[3:]];" + _IMPORT
)
"""The same for tools that carry no stdin: zip and plans ride in argv, compressed."""


def agent_zip() -> bytes:
    """The agent's modules as a zip, so that launcher and agent are never of two versions."""
    root = Path(__file__).parent.parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for package in _PACKAGES:
            archive.writestr(f"dslaunch/{package}", "")
        for module in AGENT_MODULES:
            archive.writestr(f"dslaunch/{module}", (root / module).read_bytes())
    return buffer.getvalue()


def node_command(host: Host, python: tuple[str, ...], port: int, archive: bytes) -> NodeCommand:
    """Start an agent on `host` with `python`, alone with the standard library; it is asked about `port`."""
    argv = (*python, "-ISu", "-c", STDIN_BOOTSTRAP, str(len(archive)), str(port), "0")
    return NodeCommand(host, argv, archive)


def group_command(
    hosts: tuple[Host, ...], python: tuple[str, ...], port: int, archive: bytes, index_word: str
) -> GroupCommand:
    """Start an agent on each host, by a tool that forwards stdin to all of them."""
    argv = (*python, "-ISu", "-c", STDIN_BOOTSTRAP, str(len(archive)), str(port), index_word)
    return GroupCommand(hosts, argv, archive)


def argv_group_command(
    hosts: tuple[Host, ...], python: tuple[str, ...], port: int, archive: bytes, index_word: str, plans: str
) -> GroupCommand:
    """Start an agent on each host, by a tool that forwards no stdin; `plans` is "" to ask hosts only."""
    blobs = [_blob(archive), *([_blob(plans.encode())] if plans else [])]
    argv = (*python, "-ISu", "-c", ARGV_BOOTSTRAP, blobs[0], str(port), index_word, *blobs[1:])
    return GroupCommand(hosts, argv, b"")


def _blob(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()
