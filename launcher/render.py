"""From the plan to what a backend runs: the agent's code as a zip, and the one line that starts it."""

from __future__ import annotations

import ast
import base64
import functools
import importlib.util
import io
import py_compile
import struct
import zipfile
import zlib
from pathlib import Path

from dslaunch.hostfile import Host
from dslaunch.launcher.survey.records import Request
from dslaunch.runner_backends.command import GroupCommand, NodeCommand

AGENT_MODULES = (
    "launcher/wire.py",
    "launcher/node_plan.py",
    "launcher/agent/binding.py",
    "launcher/agent/census.py",
    "launcher/agent/engine.py",
    "launcher/agent/device_use.py",
    "launcher/agent/evidence.py",
    "launcher/agent/facts.py",
    "launcher/agent/family.py",
    "launcher/agent/flight.py",
    "launcher/agent/guard.py",
    "launcher/agent/hook.py",
    "launcher/agent/kernel_state.py",
    "launcher/agent/link.py",
    "launcher/agent/main.py",
    "launcher/agent/observer.py",
    "launcher/agent/obstacle.py",
    "launcher/agent/port_claims.py",
    "launcher/agent/process.py",
    "launcher/agent/progress.py",
    "launcher/agent/cgroup.py",
    "launcher/agent/ranks.py",
    "launcher/agent/signal_pipe.py",
    "launcher/agent/ssh_watch.py",
    "launcher/agent/sweep.py",
    "launcher/agent/vitals.py",
)
SURVEY_MODULES = (
    "launcher/accelerators.py",
    "launcher/devices.py",
    "launcher/errors.py",
    "launcher/programs.py",
    "launcher/wire.py",
    "launcher/agent/facts.py",
    "launcher/survey/devices.py",
    "launcher/survey/gpus.py",
    "launcher/survey/machine.py",
    "launcher/survey/main.py",
    "launcher/survey/network.py",
    "launcher/survey/program.py",
    "launcher/survey/records.py",
    "launcher/survey/software.py",
)
_PACKAGES = ("__init__.py", "launcher/__init__.py", "launcher/agent/__init__.py")

_HEADER_BYTES = 16
_UNCHECKED_HASH = struct.pack("<IQ", 1, 0)

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
_SURVEY_BOOTSTRAP = "import os,sys,base64;b=base64.b64decode(sys.argv.pop(1));" + _IMPORT.replace(
    "agent", "survey"
)
"""For the surveyor, which an agent starts as it does a rank."""


def agent_zip(*, with_bytecode: bool) -> bytes:
    """The agent's modules as a zip, so that launcher and agent are never of two versions.

    With bytecode a host that has the launcher's version of Python need not compile them, which halves the
    agent's start; another version passes it over for the source.
    """
    root = Path(__file__).parent.parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for package in _PACKAGES:
            archive.writestr(f"dslaunch/{package}", "")
        for module in AGENT_MODULES:
            archive.writestr(f"dslaunch/{module}", (root / module).read_bytes())
            bytecode = _bytecode(root / module) if with_bytecode else b""
            if bytecode:
                archive.writestr(f"dslaunch/{module}c", bytecode)
    return buffer.getvalue()


def survey_argv(python: str, request: Request) -> tuple[str, ...]:
    """What a rank executes that looks its host over."""
    return (
        python,
        "-u",
        "-c",
        _SURVEY_BOOTSTRAP,
        base64.b64encode(_survey_zip()).decode(),
        request.to_json(),
    )


@functools.cache
def _survey_zip() -> bytes:
    """The surveyor's modules without comments and docstrings: in argv room is scarce."""
    root = Path(__file__).parent.parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for package in (*_PACKAGES, "launcher/survey/__init__.py"):
            archive.writestr(f"dslaunch/{package}", "")
        for module in SURVEY_MODULES:
            archive.writestr(f"dslaunch/{module}", _bare((root / module).read_text(encoding="utf-8")))
    return buffer.getvalue()


def _bare(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and ast.get_docstring(node) is not None
        ):
            node.body[0] = ast.Expr(ast.Constant(""))
    return ast.unparse(tree)


def _bytecode(source: Path) -> bytes:
    """The module as Python has cached it, marked so that it is taken without a look at the source (PEP 552).

    b"" where there is no cache and none can be written.
    """
    cached = Path(importlib.util.cache_from_source(str(source)))
    try:
        code = cached.read_bytes() if cached.exists() else b""
        if not _is_of(code, source):
            py_compile.compile(str(source), doraise=True)
            code = cached.read_bytes()
    except (OSError, py_compile.PyCompileError):
        return b""
    return code[:4] + _UNCHECKED_HASH + code[_HEADER_BYTES:]


def _is_of(code: bytes, source: Path) -> bool:
    """Whether cached bytecode was made of this source, by its time and size."""
    if len(code) < _HEADER_BYTES:
        return False
    magic, flags, mtime, size = struct.unpack("<4sIII", code[:_HEADER_BYTES])
    status = source.stat()
    made_of = (importlib.util.MAGIC_NUMBER, 0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    return (magic, flags, mtime, size) == made_of


def node_command(host: Host, python: tuple[str, ...], port: str, archive: bytes) -> NodeCommand:
    """Start an agent on `host` with `python`, alone with the standard library; it is asked about `port`."""
    argv = (*python, "-ISu", "-c", STDIN_BOOTSTRAP, str(len(archive)), port, "0")
    return NodeCommand(host, argv, archive)


def group_command(
    hosts: tuple[Host, ...], python: tuple[str, ...], port: str, archive: bytes, index_word: str
) -> GroupCommand:
    """Start an agent on each host, by a tool that forwards stdin to all of them."""
    argv = (*python, "-ISu", "-c", STDIN_BOOTSTRAP, str(len(archive)), port, index_word)
    return GroupCommand(hosts, argv, archive)


def argv_group_command(
    hosts: tuple[Host, ...], python: tuple[str, ...], port: str, archive: bytes, index_word: str, plans: str
) -> GroupCommand:
    """Start an agent on each host, by a tool that forwards no stdin; `plans` is "" to ask hosts only."""
    blobs = [_blob(archive), *([_blob(plans.encode())] if plans else [])]
    argv = (*python, "-ISu", "-c", ARGV_BOOTSTRAP, blobs[0], port, index_word, *blobs[1:])
    return GroupCommand(hosts, argv, b"")


def _blob(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()
