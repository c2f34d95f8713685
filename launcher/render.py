"""From the plan to what a backend runs: the agent's code as a zip, and the one line that starts it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from dslaunch.hostfile import Host
from dslaunch.runner_backends.command import NodeCommand

AGENT_MODULES = (
    "launcher/wire.py",
    "launcher/node_plan.py",
    "launcher/agent/facts.py",
    "launcher/agent/link.py",
    "launcher/agent/main.py",
    "launcher/agent/process.py",
    "launcher/agent/sweep.py",
)
_PACKAGES = ("__init__.py", "launcher/__init__.py", "launcher/agent/__init__.py")

BOOTSTRAP = (
    "import os,sys;"
    "n=int(sys.argv.pop(1));b=bytearray();"
    'any(b.extend(c) or len(b)==n for c in iter(lambda:os.read(0,n-len(b)),b""));'
    'f=os.memfd_create("dslaunch-agent");os.write(f,b);'
    'sys.path.insert(0,"/proc/self/fd/%d"%f);'
    "from dslaunch.launcher.agent.main import main;sys.exit(main())"
)
"""Reads exactly the zip from stdin, imports the agent from it, and leaves what follows to the agent.

One line without single quotes, `!`, `$` or backslashes: single-quoted, it is the same to every login shell.
"""


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


def node_command(host: Host, python: str, port: int, archive: bytes) -> NodeCommand:
    """Start an agent on `host` with `python`, alone with the standard library; it is asked about `port`."""
    return NodeCommand(host, (python, "-ISu", "-c", BOOTSTRAP, str(len(archive)), str(port)), archive)
